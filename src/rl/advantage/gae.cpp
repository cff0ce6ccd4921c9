#include "rl/advantage/gae.h"

#include <cmath>
#include <string>

#include "core/error.h"

namespace lockstep::rl {

namespace {

void require_values(const train::Datum& datum, double reward) {
  if (!std::isfinite(reward))
    throw DataError({.what = "a reward is not a number",
                     .where = "GAE",
                     .got = std::to_string(reward),
                     .wanted = "a finite reward"});
  if (datum.values.size() != datum.tokens.size())
    throw DataError({.what = "a datum has no values of a critic",
                     .where = "values",
                     .got = std::to_string(datum.values.size()),
                     .wanted = std::to_string(datum.tokens.size()) + ", one per token"});
  for (size_t t = 0; t < datum.values.size(); ++t)
    if (datum.weights[t] > 0 && !std::isfinite(datum.values[t]))
      throw DataError({.what = "a critic's value is not finite",
                       .where = "row " + std::to_string(t),
                       .got = std::to_string(datum.values[t]),
                       .wanted = "a finite number",
                       .attempt = "a smaller learning rate of the critic"});
}

template <class Value>
double variance(std::span<const train::Datum> datums, double rows, const Value& value) {
  double sum = 0, squares = 0;
  const auto each = [&](const auto& act) {
    for (const train::Datum& datum : datums)
      for (size_t t = 0; t < datum.weights.size(); ++t)
        if (datum.weights[t] > 0) act(value(datum, t));
  };
  each([&](double x) { sum += x; });
  const double mean = sum / rows;
  each([&](double x) { squares += (x - mean) * (x - mean); });
  return squares / (rows - 1);
}

}  // namespace

void set_gae(train::Datum& datum, double reward, const GaeOptions& options, const RewardShaping& kl) {
  require_values(datum, reward);
  datum.advantages.assign(datum.tokens.size(), 0.0f);
  datum.returns.assign(datum.tokens.size(), 0.0f);
  double advantage = 0, next_value = 0, at_end = reward;
  for (size_t t = datum.weights.size(); t-- > 0;) {
    if (!(datum.weights[t] > 0)) continue;
    const double value = datum.values[t];
    const double delta = at_end - row_kl(datum, t, kl) + options.gamma * next_value - value;
    advantage = delta + options.gamma * options.lambda * advantage;
    at_end = 0;
    next_value = value;
    datum.advantages[t] = static_cast<float>(advantage);
    datum.returns[t] = static_cast<float>(advantage + value);
  }
}

double explained_variance(std::span<const train::Datum> datums) {
  constexpr double kTiny = 1e-5;
  double rows = 0;
  for (const train::Datum& datum : datums)
    for (const float weight : datum.weights) rows += weight > 0 ? 1 : 0;
  if (rows < 2) return 0;
  const auto left = [](const train::Datum& d, size_t t) { return static_cast<double>(d.returns[t]) - d.values[t]; };
  const auto whole = [](const train::Datum& d, size_t t) { return static_cast<double>(d.returns[t]); };
  return 1 - variance(datums, rows, left) / (variance(datums, rows, whole) + kTiny);
}

}  // namespace lockstep::rl
