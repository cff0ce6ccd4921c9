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

}  // namespace lockstep::rl
