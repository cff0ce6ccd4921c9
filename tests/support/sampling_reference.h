// How tokens are drawn, by the definition of kernels/sample.h: in double and by sorting. For the samplers of both
// devices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/sample.h"

namespace lockstep::kernels::testing {

// The weight of every token after all filters, before normalization.
inline std::vector<double> reference_weights(const std::vector<float>& logits, const SampleRow& how) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size()), weights(logits.size(), 0.0);
  for (size_t v = 0; v < p.size(); ++v) p[v] = std::exp((logits[v] - largest) / how.temperature);
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (how.top_k > 0 && how.top_k < static_cast<int32_t>(p.size())) order.resize(static_cast<size_t>(how.top_k));
  if (how.top_p < 1) {
    double total = 0, sum = 0;
    for (const size_t v : order) total += p[v];
    size_t kept = 0;
    while (kept < order.size() && sum < how.top_p * total) sum += p[order[kept++]];
    order.resize(kept);
  }
  for (const size_t v : order)
    if (p[v] >= how.min_p) weights[v] = p[v];
  return weights;
}

// The token at u of the cumulative sum.
inline int32_t reference_draw(const std::vector<double>& weights, double u) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  int32_t last = -1;
  for (size_t v = 0; v < weights.size(); ++v) {
    if (weights[v] == 0) continue;
    last = static_cast<int32_t>(v);
    if ((sum += weights[v]) > u * total) break;
  }
  return last;
}

// Chi-square over tokens expected at least 5 times (the rest in one cell); true below the 99.9 % quantile
// (Wilson-Hilferty).
inline bool fits(const std::vector<int32_t>& tokens, const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> seen(weights.size(), 0.0);
  for (const int32_t token : tokens) seen[static_cast<size_t>(token)] += 1;
  double statistic = 0, rest_expected = 0, rest_seen = 0;
  int cells = 0;
  const auto add = [&](double expected, double got) {
    statistic += (got - expected) * (got - expected) / expected;
    ++cells;
  };
  for (size_t v = 0; v < weights.size(); ++v) {
    const double expected = weights[v] / total * static_cast<double>(tokens.size());
    if (expected >= 5)
      add(expected, seen[v]);
    else
      rest_expected += expected, rest_seen += seen[v];
  }
  if (rest_expected >= 1) add(rest_expected, rest_seen);
  const double df = cells - 1, a = 2 / (9 * df);
  return statistic < df * std::pow(1 - a + 3.09 * std::sqrt(a), 3);
}

}  // namespace lockstep::kernels::testing
