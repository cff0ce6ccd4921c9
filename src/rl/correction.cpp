#include "rl/correction.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace lockstep::rl {

namespace {

constexpr double kMaxLogRatio = 20;

double bounded(double log_ratio) {
  return std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
}

void require_sensible(const CorrectionRule& rule) {
  if (!(rule.low <= rule.high))
    throw ConfigError({.what = "bounds of a correction are not in order",
                       .where = "CorrectionRule",
                       .got = std::to_string(rule.low) + ", " + std::to_string(rule.high)});
  if (rule.action == CorrectionAction::truncate && rule.measure != Measure::ratio)
    throw ConfigError({.what = "only ratios can be truncated",
                       .where = "CorrectionRule",
                       .attempt = "mask or reject rows by a KL estimate"});
}

double measure_row(Measure measure, double d) {
  switch (measure) {
    case Measure::ratio: return std::exp(d);
    case Measure::k1: return -d;
    case Measure::k2: return 0.5 * d * d;
    case Measure::k3: return std::expm1(d) - d;
  }
  return 0;
}

// The measure of a whole sample; d holds the log-prob differences of its rows that learn.
double measure_sample(const CorrectionRule& rule, std::span<const double> d) {
  const bool ratio = rule.measure == Measure::ratio;
  double sum = 0, largest = -INFINITY;
  for (const double each : d) {
    const double value = measure_row(rule.measure, each);
    sum += ratio ? each : value;
    largest = std::max(largest, value);
  }
  if (rule.level == MeasureLevel::seq_max) return largest;
  if (rule.level == MeasureLevel::seq_mean) sum /= static_cast<double>(d.size());
  return ratio ? std::exp(bounded(sum)) : sum;
}

struct Weight {
  double value = 1;
  bool changed = false;
};

void apply(const CorrectionRule& rule, double measure, Weight& weight) {
  const bool within = measure >= rule.low && measure <= rule.high;
  const bool weighs = rule.measure == Measure::ratio && rule.action != CorrectionAction::reject;
  if (rule.action == CorrectionAction::truncate)
    weight.value *= std::clamp(measure, rule.low, rule.high);
  else
    weight.value *= !within ? 0 : weighs ? measure : 1;
  weight.changed |= !within;
}

std::vector<Weight> weights_of(std::span<const double> d, const Correction& correction) {
  std::vector<Weight> weights(d.size());
  for (const CorrectionRule& rule : correction.rules) {
    const double whole = rule.level == MeasureLevel::token ? 0 : measure_sample(rule, d);
    for (size_t i = 0; i < d.size(); ++i)
      apply(rule, rule.level == MeasureLevel::token ? measure_row(rule.measure, d[i]) : whole, weights[i]);
  }
  const bool vetoed =
      correction.veto > 0 && std::ranges::any_of(d, [&](double each) { return std::exp(each) < correction.veto; });
  if (vetoed) std::ranges::fill(weights, Weight{0, true});
  return weights;
}

std::vector<size_t> rows_that_learn(const train::Datum& datum) {
  std::vector<size_t> rows;
  for (size_t t = 0; t < datum.weights.size(); ++t)
    if (datum.weights[t] > 0) rows.push_back(t);
  return rows;
}

struct Sums {
  double weight = 0, distance = 0, changed = 0, rows = 0, ess = 0, samples = 0;
};

void add(Sums& sums, std::span<const Weight> weights) {
  double sum = 0, squares = 0;
  for (const Weight& weight : weights) {
    sum += weight.value;
    squares += weight.value * weight.value;
    sums.changed += weight.changed ? 1 : 0;
  }
  sums.weight += sum;
  sums.rows += static_cast<double>(weights.size());
  sums.ess += squares > 0 ? sum * sum / (static_cast<double>(weights.size()) * squares) : 0;
  ++sums.samples;
}

}  // namespace

CorrectionReport correct(std::span<train::Datum> datums, const Correction& correction) {
  if (!correction.is_needed()) return {};
  for (const CorrectionRule& rule : correction.rules) require_sensible(rule);
  Sums sums;
  std::vector<std::vector<Weight>> all;
  for (const train::Datum& datum : datums) {
    std::vector<double> d;
    for (const size_t t : rows_that_learn(datum))
      d.push_back(bounded(static_cast<double>(datum.policy_logprobs[t]) - datum.sampled_logprobs[t]));
    all.push_back(weights_of(d, correction));
    if (!d.empty()) add(sums, all.back());
    for (const double each : d) sums.distance += std::abs(std::exp(each) - 1);
  }
  if (sums.rows == 0) return {};
  const double mean = sums.weight / sums.rows;
  const double scale = correction.normalize && mean > 0 ? 1.0 / mean : 1.0;
  for (size_t i = 0; i < datums.size(); ++i) {
    train::Datum& datum = datums[i];
    if (datum.policy_weights.empty()) datum.policy_weights.assign(datum.weights.size(), 1.0f);
    const std::vector<size_t> rows = rows_that_learn(datum);
    for (size_t k = 0; k < rows.size(); ++k)
      datum.policy_weights[rows[k]] = static_cast<float>(datum.policy_weights[rows[k]] * all[i][k].value * scale);
  }
  return {.mean_weight = mean,
          .distance = sums.distance / sums.rows,
          .changed = sums.changed / sums.rows,
          .ess_ratio = sums.ess / sums.samples};
}

}  // namespace lockstep::rl
