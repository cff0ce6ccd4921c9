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
  const double log_ratio = row.logprob - row.datum.logprobs[row.index];
  if (!std::isfinite(log_ratio))
    fail(row, "a rollout log-prob is not finite", std::to_string(row.datum.logprobs[row.index]), "a finite number");
  metrics.logprob_diff_max = std::max(metrics.logprob_diff_max, std::abs(log_ratio));
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
  require_rows(datum, sample, "logprobs", datum.logprobs.size());
  require_rows(datum, sample, "advantages", datum.advantages.size());
  if (loss.kl_coef != 0 || !datum.ref_logprobs.empty())
    require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
}

void require_sensible(const SftLoss&) {}

void require_sensible(const PolicyLoss& loss) {
  if (!(loss.clip_low >= 0) || !(loss.clip_high >= 0))
    throw ConfigError({.what = "a clip range must not be negative",
                       .where = "--eps-clip, --eps-clip-high",
                       .got = std::to_string(loss.clip_low) + ", " + std::to_string(loss.clip_high),
                       .wanted = ">= 0"});
  if (loss.clip_c != 0 && !(loss.clip_c > 1))
    throw ConfigError({.what = "the dual clip must lie above 1",
                       .where = "--eps-clip-c",
                       .got = std::to_string(loss.clip_c),
                       .wanted = "a number > 1, or none"});
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

template <class L>
double evaluate_sample(const L& loss, double factor, const Datum& datum, int64_t sample, const SampleRows& rows,
                       Metrics& metrics) {
  double total = 0;
  for (int64_t t = 0; t < datum.size(); ++t) {
    rows.d_logprob[t] = 0;
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = 0;
    if (datum.weights[t] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[t], rows.entropy.empty() ? 0.0 : rows.entropy[t]};
    if (!(datum.weights[t] > 0) || !std::isfinite(datum.weights[t]) || datum.targets[t] < 0)
      fail(row, "a row's weight does not fit its target",
           "weight " + std::to_string(datum.weights[t]) + ", target " + std::to_string(datum.targets[t]),
           "a finite weight >= 0, and 0 where there is no target");
    if (!std::isfinite(row.logprob) || !std::isfinite(row.entropy))
      fail(row, "the model's output is not finite",
           "log-prob " + std::to_string(row.logprob) + ", entropy " + std::to_string(row.entropy), "finite numbers");
    const double weight = factor * datum.weights[t];
    const RowTerm term = row_term(loss, row, weight, metrics);
    const double value = weight * term.value;
    rows.d_logprob[t] = static_cast<float>(weight * term.d_logprob);
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = static_cast<float>(weight * term.d_entropy);
    if (!std::isfinite(value) || !std::isfinite(rows.d_logprob[t]))
      fail(row, "the loss is not finite",
           "loss " + std::to_string(value) + ", gradient " + std::to_string(rows.d_logprob[t]), "finite numbers");
    total += value;
  }
  return total;
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
  throw ConfigError(
      {.what = "unknown KL estimator", .where = "--kl-loss-type", .got = name, .wanted = "k1, k2, k3 or low_var_kl"});
}

void Metrics::add(const Metrics& other) {
  entropy += other.entropy;
  logprob_diff_max = std::max(logprob_diff_max, other.logprob_diff_max);
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
  std::visit([](const auto& kind) { require_sensible(kind); }, loss);

  LossOutput output;
  int64_t begin = 0, sample = scale.first_sample;
  for (const Datum& datum : datums) {
    const int64_t rows = datum.size();
    require_rows(datum, sample, "targets", datum.targets.size());
    require_rows(datum, sample, "weights", datum.weights.size());
    const SampleRows views{logprob.subspan(begin, rows), entropy.empty() ? entropy : entropy.subspan(begin, rows),
                           slice(d_logprob, begin, rows), slice(d_entropy, begin, rows)};
    Metrics& metrics = output.sample_metrics.emplace_back();
    const double share = std::visit(
        [&](const auto& kind) {
          require_fields(kind, datum, sample);
          return evaluate_sample(kind, sample_scale(scale, datum), datum, sample, views, metrics);
        },
        loss);
    output.sample_losses.push_back(share);
    output.loss += share;
    output.metrics.add(metrics);
    begin += rows;
    ++sample;
  }
  return output;
}

}  // namespace lockstep::train
