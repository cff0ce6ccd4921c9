#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "train/loss/kl.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

constexpr double kMaxLogRatio = 20;                    // exp of it is still a sane factor; as in miles
constexpr double kMinLogWeight = -18.420680743952367;  // log 1e-8, the smallest weight of a sequence in VESPO

// A row of weight > 0 of the sample at hand.
struct PolicyRow {
  int64_t index = 0;
  double weight = 0, logprob = 0;
  double log_ratio = 0;  // to the old policy
  double advantage = 0;
  double factor = 1;  // policy_weights
  double sampled = 0, old = 0;
  bool left_out = false;  // by PolicyLoss::sequence_mask
};

struct RowTerm {
  double value = 0;
  double slope = 0;  // d (sum over the sample's rows of weight * value) / d (this log-prob), / weight
  bool clipped = false;
};

double ratio_of(double log_ratio) {
  return std::exp(std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio));
}

bool moves(double log_ratio) {
  return std::abs(log_ratio) <= kMaxLogRatio;
}

RowTerm clip_term(const PolicyLoss& loss, double log_ratio, double advantage) {
  const double ratio = ratio_of(log_ratio);
  const double unclipped = -ratio * advantage;
  const double clipped = -std::clamp(ratio, 1.0 - loss.clip_low, 1.0 + loss.clip_high) * advantage;
  const bool is_clipped = clipped > unclipped;
  const double bound = -loss.clip_c * advantage;
  if (loss.clip_c > 0 && advantage < 0 && std::max(unclipped, clipped) > bound) return {bound, 0, true};
  if (is_clipped) return {clipped, 0, true};
  return {unclipped, moves(log_ratio) ? unclipped : 0};
}

RowTerm cispo_term(const PolicyLoss& loss, const PolicyRow& row) {
  const double low = loss.absolute_bounds ? loss.clip_low : 1.0 - loss.clip_low;
  const double high = loss.absolute_bounds ? loss.clip_high : 1.0 + loss.clip_high;
  const double ratio = ratio_of(row.log_ratio), bounded = std::clamp(ratio, low, high);
  return {-bounded * row.advantage * row.logprob, -bounded * row.advantage, bounded != ratio};
}

RowTerm sapo_term(const PolicyLoss& loss, const PolicyRow& row) {
  const double tau = row.advantage > 0 ? loss.sapo.positive : loss.sapo.negative;
  const double ratio = ratio_of(row.log_ratio), gate = 1.0 / (1.0 + std::exp(-tau * (ratio - 1.0)));
  return {-row.advantage * gate * 4.0 / tau,
          moves(row.log_ratio) ? -row.advantage * 4.0 * gate * (1.0 - gate) * ratio : 0};
}

bool within_tv(const PolicyLoss& loss, const PolicyRow& row) {
  const double moved = std::exp(row.logprob) - std::exp(row.old);
  return row.advantage > 0 ? moved <= loss.clip_high : moved >= -loss.clip_low;
}

bool within_kl(const PolicyLoss& loss, const PolicyRow& row) {
  constexpr double kTiny = 1e-8;
  const double p = std::exp(row.logprob), q = std::exp(row.old);
  const double kl = q * (row.old - row.logprob) + (1 - q) * std::log((1 - q + kTiny) / (1 - p + kTiny));
  return row.advantage > 0 ? kl <= loss.clip_high || p <= q : kl <= loss.clip_low || p >= q;
}

RowTerm dppo_term(const PolicyLoss& loss, const PolicyRow& row, bool within) {
  if (!within) return {0, 0, true};
  const double bounded = std::min(ratio_of(row.log_ratio), static_cast<double>(loss.dppo.ratio_cap));
  return {-row.advantage * bounded * row.logprob, -row.advantage * bounded};
}

// The term without its KL, which no correction multiplies.
RowTerm dppo_mask_term(const PolicyLoss& loss, const PolicyRow& row) {
  const double moved = std::exp(row.logprob) - std::exp(row.sampled);
  if (row.advantage > 0 ? moved > loss.mask.high : moved < -loss.mask.low) return {0, 0, true};
  const double log_ratio = row.logprob - row.sampled, value = -ratio_of(log_ratio) * row.advantage;
  return {value, moves(log_ratio) ? value : 0};
}

// The terms of objectives whose rows do not depend on one another.
RowTerm token_term(const PolicyLoss& loss, const PolicyRow& row) {
  switch (loss.objective) {
    case PolicyObjective::ratio: {
      const double value = -ratio_of(row.log_ratio) * row.advantage;
      return {value, moves(row.log_ratio) ? value : 0};
    }
    case PolicyObjective::reinforce: return {-row.advantage * row.logprob, -row.advantage};
    case PolicyObjective::cispo: return cispo_term(loss, row);
    case PolicyObjective::sapo: return sapo_term(loss, row);
    case PolicyObjective::dppo_tv: return dppo_term(loss, row, within_tv(loss, row));
    case PolicyObjective::dppo_kl: return dppo_term(loss, row, within_kl(loss, row));
    case PolicyObjective::dppo_mask: return dppo_mask_term(loss, row);
    case PolicyObjective::dro:
      return {-(row.logprob * row.advantage - 0.5 * loss.dro_beta * row.log_ratio * row.log_ratio),
              -(row.advantage - loss.dro_beta * row.log_ratio)};
    default: return clip_term(loss, row.log_ratio, row.advantage);
  }
}

template <class Value>
double weighted_mean(std::span<const PolicyRow> rows, const Value& value) {
  double sum = 0, weight = 0;
  for (const PolicyRow& row : rows) {
    sum += row.weight * value(row);
    weight += row.weight;
  }
  return sum / weight;
}

// The gradient of a mean reaches every row alike.
std::vector<RowTerm> sequence_clip_terms(const PolicyLoss& loss, std::span<const PolicyRow> rows) {
  const double log_ratio = weighted_mean(rows, [](const PolicyRow& row) { return row.log_ratio; });
  std::vector<RowTerm> terms;
  double slope = 0, weight = 0;
  for (const PolicyRow& row : rows) {
    RowTerm term = clip_term(loss, log_ratio, row.advantage);
    term.value *= row.factor;
    slope += row.weight * row.factor * term.slope;
    weight += row.weight;
    terms.push_back(term);
  }
  for (RowTerm& term : terms) term.slope = slope / weight;
  return terms;
}

std::vector<RowTerm> geometric_mean_terms(const PolicyLoss& loss, std::span<const PolicyRow> rows) {
  const auto bounded = [&](const PolicyRow& row) {
    if (row.advantage == 0) return 0.0;
    return row.advantage > 0 ? std::min(row.log_ratio, static_cast<double>(loss.clip_high))
                             : std::max(row.log_ratio, -static_cast<double>(loss.clip_low));
  };
  const double advantage = weighted_mean(rows, [](const PolicyRow& row) { return row.advantage; });
  const double factor = weighted_mean(rows, [](const PolicyRow& row) { return row.factor; });
  const double value = -advantage * ratio_of(weighted_mean(rows, bounded));
  std::vector<RowTerm> terms;
  for (const PolicyRow& row : rows) {
    const bool clipped = row.advantage != 0 && bounded(row) != row.log_ratio;
    terms.push_back({value * row.factor, clipped || row.advantage == 0 ? 0 : value * factor, clipped});
  }
  return terms;
}

std::vector<RowTerm> vespo_terms(const PolicyLoss& loss, std::span<const PolicyRow> rows) {
  double log_weight = 0;
  for (const PolicyRow& row : rows) log_weight += std::clamp(row.log_ratio, -kMaxLogRatio, kMaxLogRatio);
  log_weight = std::clamp(log_weight, kMinLogWeight, kMaxLogRatio);
  std::vector<RowTerm> terms;
  for (const PolicyRow& row : rows) {
    const double k = row.advantage >= 0 ? loss.vespo.k_positive : loss.vespo.k_negative;
    const double l = row.advantage >= 0 ? loss.vespo.l_positive : loss.vespo.l_negative;
    const double weight = std::exp(l + k * log_weight - l * std::exp(log_weight));
    const double slope = -weight * row.advantage * row.factor;
    terms.push_back({slope * row.logprob, slope});
  }
  return terms;
}

// The sample's value with all factors included.
std::vector<RowTerm> objective_terms(const PolicyLoss& loss, std::span<const PolicyRow> rows) {
  if (loss.objective == PolicyObjective::clip && loss.ratio_level == RatioLevel::sequence)
    return sequence_clip_terms(loss, rows);
  if (loss.objective == PolicyObjective::gmpo) return geometric_mean_terms(loss, rows);
  if (loss.objective == PolicyObjective::vespo) return vespo_terms(loss, rows);
  std::vector<RowTerm> terms;
  for (const PolicyRow& row : rows) {
    RowTerm term = token_term(loss, row);
    term.value *= row.factor;
    term.slope *= row.factor;
    terms.push_back(term);
  }
  return terms;
}

void mask_sequence(const SequenceMask& mask, std::vector<PolicyRow>& rows) {
  const double moved = weighted_mean(std::span<const PolicyRow>(rows), [&](const PolicyRow& row) {
    return mask.from_sampler ? row.sampled - row.logprob : -row.log_ratio;
  });
  if (!(moved > mask.delta)) return;
  for (PolicyRow& row : rows) {
    row.left_out = row.advantage < 0;
    if (row.left_out) row.factor = 0;
  }
}

// What is added to the objective of a row: penalties and the KL of dppo_mask.
void add_row_penalties(const PolicyLoss& loss, const Datum& datum, const PolicyRow& row, RowTerm& term) {
  if (!datum.penalties.empty()) {
    const double penalty = row.factor * datum.penalties[row.index];
    term.value += penalty * std::abs(row.log_ratio);
    term.slope += row.log_ratio > 0 ? penalty : row.log_ratio < 0 ? -penalty : 0;
  }
  if (loss.objective == PolicyObjective::dppo_mask) {
    const double difference = row.logprob - row.sampled;
    term.value += loss.mask.kl * difference * difference;
    term.slope += 2 * loss.mask.kl * difference;
  }
}

// Returns its value before the coefficient.
double add_kl(const PolicyLoss& loss, const Row& row, const PolicyRow& values, RowTerm& term) {
  if (row.datum.ref_logprobs.empty()) return 0;
  const double k1 = row.logprob - row.datum.ref_logprobs[row.index];
  if (!std::isfinite(k1))
    fail(row, "a reference log-prob is not finite", std::to_string(row.datum.ref_logprobs[row.index]),
         "a finite number");
  const double ratio = ratio_of(values.log_ratio);
  const Estimate kl = loss.unbiased_kl
                          ? estimate_unbiased_kl(loss.kl_type, k1, ratio, moves(values.log_ratio) ? ratio : 0)
                          : estimate_kl(loss.kl_type, k1);
  if (loss.kl_coef == 0) return kl.value;  // only measured: 0 times an infinite estimate is no number
  term.value += loss.kl_coef * kl.value;
  term.slope += loss.kl_coef * kl.slope;
  return kl.value;
}

PolicyRow policy_row(const Row& row) {
  const auto at = static_cast<size_t>(row.index);
  const double log_ratio = row.logprob - row.datum.policy_logprobs[at];
  if (!std::isfinite(log_ratio))
    fail(row, "a log-prob of the policy is not finite", std::to_string(row.datum.policy_logprobs[at]),
         "a finite number");
  if (!std::isfinite(row.logprob - row.datum.sampled_logprobs[at]))
    fail(row, "a rollout log-prob is not finite", std::to_string(row.datum.sampled_logprobs[at]), "a finite number");
  return {.index = row.index,
          .weight = row.datum.weights[at],
          .logprob = row.logprob,
          .log_ratio = log_ratio,
          .advantage = row.datum.advantages[at],
          .factor = row.datum.policy_weights.empty() ? 1.0 : row.datum.policy_weights[at],
          .sampled = row.datum.sampled_logprobs[at],
          .old = row.datum.policy_logprobs[at]};
}

void measure(const PolicyRow& row, double entropy, bool clipped, double weight, Metrics& metrics) {
  const double difference = std::abs(row.logprob - row.sampled);
  metrics.logprob_diff += weight * difference;
  metrics.logprob_diff_max = std::max(metrics.logprob_diff_max, difference);
  metrics.entropy += weight * entropy;
  metrics.policy_kl -= weight * row.log_ratio;
  metrics.ratio += weight * ratio_of(row.log_ratio);
  if (clipped) metrics.clip_fraction += weight;
  if (row.left_out) metrics.sequence_mask += weight;
}

}  // namespace

double evaluate_policy(const PolicyLoss& loss, const SampleScale& scale, const Datum& datum, int64_t sample,
                       const SampleRows& rows, Metrics& metrics) {
  const auto at = [&](int64_t t) {
    return Row{datum, sample, t, rows.logprob[t], rows.entropy.empty() ? 0.0 : rows.entropy[t]};
  };
  std::vector<PolicyRow> values;
  std::ranges::fill(rows.d_candidate_logprob, 0.0f);
  for (int64_t t = 0; t < datum.size(); ++t) {
    rows.d_logprob[t] = 0;
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = 0;
    if (datum.weights[t] == 0) continue;
    require_row(at(t));
    values.push_back(policy_row(at(t)));
  }
  if (values.empty()) return 0;
  if (loss.sequence_mask.on) mask_sequence(loss.sequence_mask, values);
  std::vector<RowTerm> terms = objective_terms(loss, values);
  double total = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const PolicyRow& value = values[i];
    const Row row = at(value.index);
    RowTerm& term = terms[i];
    add_row_penalties(loss, datum, value, term);
    const double weight = scale.loss * datum.weights[row.index];
    metrics.objective += weight * term.value;
    term.value -= loss.entropy_coef * row.entropy;
    metrics.reference_kl += weight * add_kl(loss, row, value, term);
    measure(value, row.entropy, term.clipped, scale.metric * datum.weights[row.index], metrics);
    if (loss.distill.kind != DistillKind::none) {
      const DistillRow pull = distill_row(loss.distill, row, rows, weight * loss.distill.coef);
      term.value += loss.distill.coef * pull.value;
      term.slope += loss.distill.coef * pull.slope;
      metrics.distillation += scale.metric * datum.weights[row.index] * pull.value;
    }
    const double share = weight * term.value;
    rows.d_logprob[row.index] = static_cast<float>(weight * term.slope);
    if (!rows.d_entropy.empty()) rows.d_entropy[row.index] = static_cast<float>(weight * -loss.entropy_coef);
    require_finite(row, share, rows.d_logprob[row.index]);
    total += share;
  }
  return total;
}

void require_fields(const PolicyLoss& loss, const Datum& datum, int64_t sample) {
  require_rows(datum, sample, "sampled_logprobs", datum.sampled_logprobs.size());
  require_rows(datum, sample, "policy_logprobs", datum.policy_logprobs.size());
  require_rows(datum, sample, "advantages", datum.advantages.size());
  if (!datum.policy_weights.empty()) require_rows(datum, sample, "policy_weights", datum.policy_weights.size());
  if (!datum.penalties.empty()) require_rows(datum, sample, "penalties", datum.penalties.size());
  if (loss.kl_coef != 0 || !datum.ref_logprobs.empty())
    require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
  require_fields(loss.distill, datum, sample);
}

const PolicyObjectiveName& name_of(PolicyObjective objective) {
  return *std::ranges::find(kPolicyObjectives, objective, &PolicyObjectiveName::objective);
}

std::vector<double> PolicyLoss::shape() const {
  return {unbiased_kl ? 1.0 : 0.0,
          absolute_bounds ? 1.0 : 0.0,
          sapo.positive,
          sapo.negative,
          dppo.ratio_cap,
          mask.low,
          mask.high,
          mask.kl,
          vespo.k_positive,
          vespo.l_positive,
          vespo.k_negative,
          vespo.l_negative,
          dro_beta,
          sequence_mask.on ? 1.0 : 0.0,
          sequence_mask.delta,
          sequence_mask.from_sampler ? 1.0 : 0.0};
}

void require_sensible(const PolicyLoss& loss) {
  if (!(loss.clip_low >= 0) || !(loss.clip_high >= 0))
    throw ConfigError({.what = "a clip range must not be negative",
                       .where = "PolicyLoss::clip_low, PolicyLoss::clip_high",
                       .got = std::to_string(loss.clip_low) + ", " + std::to_string(loss.clip_high),
                       .wanted = ">= 0"});
  if (loss.absolute_bounds && loss.clip_low > loss.clip_high)
    throw ConfigError({.what = "the lower bound of the ratio lies above the upper one",
                       .where = "PolicyLoss::clip_low",
                       .got = std::to_string(loss.clip_low),
                       .wanted = "at most " + std::to_string(loss.clip_high)});
  if (loss.clip_c != 0 && !(loss.clip_c > 1))
    throw ConfigError({.what = "the dual clip must lie above 1",
                       .where = "PolicyLoss::clip_c",
                       .got = std::to_string(loss.clip_c),
                       .wanted = "a number > 1, or none"});
  if (!(loss.sapo.positive > 0) || !(loss.sapo.negative > 0))
    throw ConfigError({.what = "SAPO needs positive temperatures",
                       .where = "PolicyLoss::sapo",
                       .got = std::to_string(loss.sapo.positive) + ", " + std::to_string(loss.sapo.negative),
                       .wanted = "> 0"});
  require_sensible(loss.distill);
}

}  // namespace lockstep::train
