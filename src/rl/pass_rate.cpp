#include "rl/pass_rate.h"

#include <algorithm>

namespace lockstep::rl {

namespace {

// Computes 1 - C(n - c, k) / C(n, k) as a product that cannot overflow.
double pass_at(int64_t n, int64_t c, int64_t k) {
  if (n - c < k) return 1;
  double none = 1;
  for (int64_t i = n - c + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none;
}

}  // namespace

std::vector<PassRate> pass_rates(std::span<const std::optional<float>> rewards, int64_t n) {
  std::vector<int64_t> right;  // of each prompt that is fully known
  for (size_t first = 0; first + static_cast<size_t>(n) <= rewards.size(); first += static_cast<size_t>(n)) {
    const auto group = rewards.subspan(first, static_cast<size_t>(n));
    if (!std::ranges::all_of(group, [](const auto& reward) { return reward.has_value(); })) continue;
    right.push_back(std::ranges::count_if(group, [](const auto& reward) { return *reward >= 1; }));
  }
  std::vector<PassRate> rates;
  if (right.empty()) return rates;
  std::vector<int64_t> sizes;
  for (int64_t k = 1; k < n; k *= 2) sizes.push_back(k);
  sizes.push_back(n);
  for (const int64_t k : sizes) {
    double sum = 0;
    for (const int64_t c : right) sum += pass_at(n, c, k);
    rates.push_back({.k = k, .rate = sum / static_cast<double>(right.size())});
  }
  return rates;
}

}  // namespace lockstep::rl
