#include "service/serving_metrics.h"

#include <algorithm>

namespace lockstep::service {

void Histogram::add(double value) {
  const auto first = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  for (size_t i = static_cast<size_t>(first); i < counts_.size(); ++i) ++counts_[i];
  sum_ += value;
}

std::vector<double> ServingMetrics::latency_bounds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
          1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
}

std::vector<double> ServingMetrics::token_bounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
          0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
}

std::vector<double> ServingMetrics::count_bounds() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
}

}  // namespace lockstep::service
