#include "train/loss.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lockstep::train {

namespace {

constexpr double kMaxLogRatio = 20;  // exp of it is still a sane factor; as in miles
constexpr double kMaxLowVar = 10;

struct Estimate {
  double value = 0, slope = 0;  // slope: d value / d logprob
};

Estimate estimate_kl(KlType type, double k1) {
  switch (type) {
    case KlType::k1: return {k1, 1};
    case KlType::k2: return {0.5 * k1 * k1, k1};
    case KlType::k3:
    case KlType::low_var: break;
  }
  const double inverse_ratio = std::exp(-k1);
  const Estimate exact{inverse_ratio - 1 + k1, 1 - inverse_ratio};
  if (type == KlType::low_var && exact.value > kMaxLowVar) return {kMaxLowVar, 0};
  return exact;
}

// What one row adds, before its weight.
struct RowTerm {
  double value = 0, d_logprob = 0, d_entropy = 0;
};

// One row of a datum and where it is, for messages.
struct Row {
  const Datum& datum;
  int64_t sample, index;
  double logprob, entropy;
};

[[noreturn]] void fail(const Row& row, const std::string& what, const std::string& got, const std::string& wanted) {
  throw DataError({.what = what,
                   .where = "sample " + std::to_string(row.sample) + ", row " + std::to_string(row.index),
                   .got = got,
                   .wanted = wanted});
}

RowTerm row_term(const SftLoss&, const Row& row, double, Metrics&) {
  return {-row.logprob, -1, 0};
}

Estimate policy_gradient(const PolicyLoss& loss, double log_ratio, double advantage) {
  const double ratio = std::exp(std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio));
  const double unclipped = -ratio * advantage;
  const double clipped = -std::clamp(ratio, 1.0 - loss.clip_low, 1.0 + loss.clip_high) * advantage;
  const bool is_clipped = clipped > unclipped;
  const double bound = -loss.clip_c * advantage;
  if (loss.clip_c > 0 && advantage < 0 && std::max(unclipped, clipped) > bound) return {bound, 0};
  if (is_clipped) return {clipped, 0};
  return {unclipped, std::abs(log_ratio) <= kMaxLogRatio ? unclipped : 0};
}

RowTerm row_term(const PolicyLoss& loss, const Row& row, double weight, Metrics& metrics) {
  const double log_ratio = row.logprob - row.datum.policy_logprobs[row.index];
  if (!std::isfinite(log_ratio))
    fail(row, "a log-prob of the policy is not finite", std::to_string(row.datum.policy_logprobs[row.index]),
         "a finite number");
  const double difference = row.logprob - row.datum.sampled_logprobs[row.index];
  if (!std::isfinite(difference))
    fail(row, "a rollout log-prob is not finite", std::to_string(row.datum.sampled_logprobs[row.index]),
         "a finite number");
  metrics.logprob_diff += weight * std::abs(difference);
  metrics.logprob_diff_max = std::max(metrics.logprob_diff_max, std::abs(difference));
  const Estimate pg = policy_gradient(loss, log_ratio, row.datum.advantages[row.index]);
  RowTerm term{pg.value - loss.entropy_coef * row.entropy, pg.slope, -loss.entropy_coef};
  metrics.entropy += weight * row.entropy;
  if (!row.datum.ref_logprobs.empty()) {
    const double k1 = row.logprob - row.datum.ref_logprobs[row.index];
    if (!std::isfinite(k1))
      fail(row, "a reference log-prob is not finite", std::to_string(row.datum.ref_logprobs[row.index]),
           "a finite number");
    if (loss.kl_coef != 0) {
      const Estimate kl = estimate_kl(loss.kl_type, k1);
      term.value += loss.kl_coef * kl.value;
      term.d_logprob += loss.kl_coef * kl.slope;
    }
  }
  return term;
}

void require_rows(const Datum& datum, int64_t sample, const char* field, size_t rows) {
  if (static_cast<int64_t>(rows) == datum.size()) return;
  throw DataError({.what = "a datum has the wrong number of entries",
                   .where = "sample " + std::to_string(sample) + ", " + field,
                   .got = std::to_string(rows),
                   .wanted = std::to_string(datum.size()) + ", one per token"});
}

void require_fields(const SftLoss&, const Datum&, int64_t) {}

void require_fields(const PolicyLoss& loss, const Datum& datum, int64_t sample) {
  require_rows(datum, sample, "sampled_logprobs", datum.sampled_logprobs.size());
  require_rows(datum, sample, "policy_logprobs", datum.policy_logprobs.size());
  require_rows(datum, sample, "advantages", datum.advantages.size());
  if (loss.kl_coef != 0 || !datum.ref_logprobs.empty())
    require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
}

void require_fields(const DpoLoss&, const Datum& datum, int64_t sample) {
  require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
}

void require_sensible(const SftLoss&, const LossScale&, size_t) {}

void require_sensible(const PolicyLoss& loss, const LossScale&, size_t) {
  if (!(loss.clip_low >= 0) || !(loss.clip_high >= 0))
    throw ConfigError({.what = "a clip range must not be negative",
                       .where = "PolicyLoss::clip_low, PolicyLoss::clip_high",
                       .got = std::to_string(loss.clip_low) + ", " + std::to_string(loss.clip_high),
                       .wanted = ">= 0"});
  if (loss.clip_c != 0 && !(loss.clip_c > 1))
    throw ConfigError({.what = "the dual clip must lie above 1",
                       .where = "PolicyLoss::clip_c",
                       .got = std::to_string(loss.clip_c),
                       .wanted = "a number > 1, or none"});
}

void require_sensible(const DpoLoss& loss, const LossScale& scale, size_t datums) {
  if (!(loss.beta > 0) || !std::isfinite(loss.beta))
    throw ConfigError({.what = "DPO needs a positive beta",
                       .where = "DpoLoss::beta",
                       .got = std::to_string(loss.beta),
                       .wanted = "a number > 0"});
  if (scale.per_token) throw ConfigError({.what = "DPO's loss is a mean over pairs", .where = "LossScale::per_token"});
  if (datums % 2 != 0 || scale.num_samples % 2 != 0 || scale.first_sample % 2 != 0)
    throw ConfigError({.what = "a pair is cut",
                       .where = "sample " + std::to_string(scale.first_sample),
                       .got = std::to_string(datums) + " datums of " + std::to_string(scale.num_samples),
                       .wanted = "chosen and rejected, one after the other, in one call"});
}

void require_size(const char* name, size_t got, int64_t rows, bool may_be_empty) {
  if (static_cast<int64_t>(got) == rows || (may_be_empty && got == 0)) return;
  throw ShapeError({.what = "a loss was given the wrong number of rows",
                    .where = name,
                    .got = std::to_string(got),
                    .wanted = std::to_string(rows)});
}

// The factor of the row weights of one sample.
double sample_scale(const LossScale& scale, const Datum& datum) {
  if (scale.per_token) return 1.0 / scale.weight_total;
  const double sum = datum.weight_sum();
  return sum > 0 ? 1.0 / (sum * static_cast<double>(scale.num_samples)) : 0.0;
}

// The rows of one datum inside the caller's arrays; entropy and d_entropy may be empty.
struct SampleRows {
  std::span<const float> logprob, entropy;
  std::span<float> d_logprob, d_entropy;
};

void require_row(const Row& row) {
  const float weight = row.datum.weights[row.index];
  const int32_t target = row.datum.targets[row.index];
  if (!(weight > 0) || !std::isfinite(weight) || target < 0)
    fail(row, "a row's weight does not fit its target",
         "weight " + std::to_string(weight) + ", target " + std::to_string(target),
         "a finite weight >= 0, and 0 where there is no target");
  if (!std::isfinite(row.logprob) || !std::isfinite(row.entropy))
    fail(row, "the model's output is not finite",
         "log-prob " + std::to_string(row.logprob) + ", entropy " + std::to_string(row.entropy), "finite numbers");
}

void require_finite(const Row& row, double value, double gradient) {
  if (std::isfinite(value) && std::isfinite(gradient)) return;
  fail(row, "the loss is not finite", "loss " + std::to_string(value) + ", gradient " + std::to_string(gradient),
       "finite numbers");
}

template <class L>
double evaluate_sample(const L& loss, double factor, const Datum& datum, int64_t sample, const SampleRows& rows,
                       Metrics& metrics) {
  double total = 0;
  for (int64_t t = 0; t < datum.size(); ++t) {
    rows.d_logprob[t] = 0;
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = 0;
    if (datum.weights[t] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[t], rows.entropy.empty() ? 0.0 : rows.entropy[t]};
    require_row(row);
    const double weight = factor * datum.weights[t];
    const RowTerm term = row_term(loss, row, weight, metrics);
    const double value = weight * term.value;
    rows.d_logprob[t] = static_cast<float>(weight * term.d_logprob);
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = static_cast<float>(weight * term.d_entropy);
    require_finite(row, value, rows.d_logprob[t]);
    total += value;
  }
  return total;
}

// The datums of one term, their views in the caller's arrays, and the number of the first in the step.
struct Term {
  std::span<const Datum> datums;
  std::span<const SampleRows> rows;
  int64_t sample = 0;
};

template <class L>
void evaluate_term(const L& loss, const LossScale& scale, const Term& term, LossOutput& output) {
  Metrics& metrics = output.sample_metrics.emplace_back();
  output.sample_losses.push_back(
      evaluate_sample(loss, sample_scale(scale, term.datums[0]), term.datums[0], term.sample, term.rows[0], metrics));
}

// sum w lp and sum w ref of one datum.
struct SequenceLogprobs {
  double policy = 0, reference = 0;
};

SequenceLogprobs sum_logprobs(const Datum& datum, int64_t sample, const SampleRows& rows) {
  SequenceLogprobs sums;
  for (int64_t t = 0; t < datum.size(); ++t) {
    if (datum.weights[t] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[t], 0};
    require_row(row);
    require_finite(row, datum.ref_logprobs[t], 0);
    sums.policy += static_cast<double>(datum.weights[t]) * rows.logprob[t];
    sums.reference += static_cast<double>(datum.weights[t]) * datum.ref_logprobs[t];
  }
  return sums;
}

void evaluate_term(const DpoLoss& loss, const LossScale& scale, const Term& term, LossOutput& output) {
  SequenceLogprobs sums[2];
  for (size_t side : {0, 1})
    sums[side] = sum_logprobs(term.datums[side], term.sample + static_cast<int64_t>(side), term.rows[side]);
  const double beta = loss.beta, share = 2.0 / static_cast<double>(scale.num_samples);
  const double chosen = beta * (sums[0].policy - sums[0].reference);
  const double rejected = beta * (sums[1].policy - sums[1].reference);
  const double margin = chosen - rejected;
  // log1p(exp(-|m|)) does not overflow, whichever side is preferred.
  const double value = share * (std::max(-margin, 0.0) + std::log1p(std::exp(-std::abs(margin))));
  const double slope = share * beta / (1.0 + std::exp(margin));
  for (size_t side : {0, 1}) {
    const Datum& datum = term.datums[side];
    for (int64_t t = 0; t < datum.size(); ++t) {
      const double weight = static_cast<double>(datum.weights[t]) * (side == 0 ? -slope : slope);
      term.rows[side].d_logprob[t] = static_cast<float>(weight);
      if (!term.rows[side].d_entropy.empty()) term.rows[side].d_entropy[t] = 0;
      require_finite({datum, term.sample + static_cast<int64_t>(side), t, 0, 0}, value, weight);
    }
  }
  output.sample_losses.insert(output.sample_losses.end(), {value, 0.0});
  output.sample_metrics.push_back({.reward_chosen = share * chosen,
                                   .reward_rejected = share * rejected,
                                   .reward_accuracy = chosen > rejected ? share : 0.0,
                                   .logp_chosen = share * sums[0].policy,
                                   .logp_rejected = share * sums[1].policy});
  output.sample_metrics.emplace_back();
}

std::span<float> slice(std::span<float> all, int64_t begin, int64_t rows) {
  return all.empty() ? all : all.subspan(begin, rows);
}

}  // namespace

double kl_estimate(KlType type, double logprob, double ref_logprob) {
  return estimate_kl(type, logprob - ref_logprob).value;
}

KlType parse_kl_type(const std::string& name) {
  if (name == "k1") return KlType::k1;
  if (name == "k2") return KlType::k2;
  if (name == "k3") return KlType::k3;
  if (name == "low_var_kl") return KlType::low_var;
  throw ConfigError({.what = "unknown KL estimator",
                     .where = "PolicyLoss::kl_type",
                     .got = name,
                     .wanted = "k1, k2, k3 or low_var_kl"});
}

void Metrics::add(const Metrics& other) {
  entropy += other.entropy;
  logprob_diff += other.logprob_diff;
  logprob_diff_max = std::max(logprob_diff_max, other.logprob_diff_max);
  reward_chosen += other.reward_chosen;
  reward_rejected += other.reward_rejected;
  reward_accuracy += other.reward_accuracy;
  logp_chosen += other.logp_chosen;
  logp_rejected += other.logp_rejected;
}

int64_t datums_per_term(const Loss& loss) {
  return std::holds_alternative<DpoLoss>(loss) ? 2 : 1;
}

bool needs_entropy(const Loss& loss) {
  return std::holds_alternative<PolicyLoss>(loss);
}

bool needs_entropy_gradient(const Loss& loss) {
  const PolicyLoss* policy = std::get_if<PolicyLoss>(&loss);
  return policy != nullptr && policy->entropy_coef != 0;
}

LossOutput evaluate_loss(const Loss& loss, const LossScale& scale, std::span<const Datum> datums,
                         std::span<const float> logprob, std::span<const float> entropy, std::span<float> d_logprob,
                         std::span<float> d_entropy) {
  int64_t total_rows = 0;
  for (const Datum& datum : datums) total_rows += datum.size();
  require_size("logprob", logprob.size(), total_rows, false);
  require_size("d_logprob", d_logprob.size(), total_rows, false);
  require_size("entropy", entropy.size(), total_rows, !needs_entropy(loss));
  require_size("d_entropy", d_entropy.size(), total_rows, !needs_entropy_gradient(loss));
  std::visit([&](const auto& kind) { require_sensible(kind, scale, datums.size()); }, loss);

  LossOutput output;
  const size_t term = static_cast<size_t>(datums_per_term(loss));
  int64_t begin = 0;
  std::vector<SampleRows> rows;
  for (size_t i = 0; i < datums.size(); ++i) {
    const Datum& datum = datums[i];
    const int64_t count = datum.size(), sample = scale.first_sample + static_cast<int64_t>(i);
    require_rows(datum, sample, "targets", datum.targets.size());
    require_rows(datum, sample, "weights", datum.weights.size());
    std::visit([&](const auto& kind) { require_fields(kind, datum, sample); }, loss);
    rows.push_back({logprob.subspan(begin, count), entropy.empty() ? entropy : entropy.subspan(begin, count),
                    slice(d_logprob, begin, count), slice(d_entropy, begin, count)});
    begin += count;
  }
  for (size_t i = 0; i < datums.size(); i += term)
    std::visit(
        [&](const auto& kind) {
          evaluate_term(
              kind, scale,
              {datums.subspan(i, term), std::span(rows).subspan(i, term), scale.first_sample + static_cast<int64_t>(i)},
              output);
        },
        loss);
  for (const double share : output.sample_losses) output.loss += share;
  for (const Metrics& metrics : output.sample_metrics) output.metrics.add(metrics);
  return output;
}

}  // namespace lockstep::train
