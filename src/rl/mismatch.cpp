#include "rl/mismatch.h"

#include <algorithm>
#include <cmath>

namespace lockstep::rl {

Mismatch measure_mismatch(std::span<const train::Datum> datums) {
  Mismatch sums;
  int64_t rows = 0;
  for (const train::Datum& datum : datums)
    for (size_t t = 0; t < datum.weights.size(); ++t) {
      if (!(datum.weights[t] > 0)) continue;
      const double d = static_cast<double>(datum.policy_logprobs[t]) - static_cast<double>(datum.sampled_logprobs[t]);
      sums.mean += std::abs(d);
      sums.max = std::max(sums.max, std::abs(d));
      sums.k3 += std::expm1(d) - d;
      ++rows;
    }
  if (rows == 0) return {};
  sums.mean /= static_cast<double>(rows);
  sums.k3 /= static_cast<double>(rows);
  return sums;
}

LogprobDifference measure_logprobs(std::span<const train::Datum> datums, std::span<const std::vector<float>> logprobs,
                                   bool per_token) {
  LogprobDifference difference;
  double all = 0, weights = 0;
  for (size_t i = 0; i < datums.size(); ++i) {
    const train::Datum& datum = datums[i];
    double sum = 0;
    for (size_t t = 0; t < datum.weights.size(); ++t) {
      if (!(datum.weights[t] > 0)) continue;
      const double d = std::abs(static_cast<double>(logprobs[i][t]) - static_cast<double>(datum.sampled_logprobs[t]));
      sum += datum.weights[t] * d;
      difference.max = std::max(difference.max, d);
    }
    const double weight = datum.weight_sum();
    if (weight == 0) continue;
    all += per_token ? sum : sum / weight;
    weights += per_token ? weight : 1;
  }
  if (weights > 0) difference.mean = all / weights;
  return difference;
}

}  // namespace lockstep::rl
