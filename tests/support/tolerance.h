// How far a GPU's numbers may lie from a reference, and why. bf16 keeps 8 significant bits: one rounding errs by up to
// 2^-9 = 0.2 % of a value, and a block of the model rounds about ten times between its input and its output.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/tensor.h"

namespace lockstep::testing {

struct Tolerance {
  double logits = 0;    // max |a - b| / max |b|
  double logprob = 0;   // max |a - b|, also of entropies
  double gradient = 0;  // max |a - b| / max |b|, per tensor
};

// The CPU's f32 against transformers' f32: only the order of sums differs.
inline constexpr Tolerance kSameArithmetic{.logits = 1e-5, .logprob = 1e-5, .gradient = 1e-5};

// The same bf16 weights and adapter: what differs is the rounding of activations, and of the gradients between ops.
inline constexpr Tolerance kRoundedActivations{.logits = 0.02, .logprob = 0.05, .gradient = 0.05};

// Goldens in f32 or f16, whose weights a GPU rounds as well: as much again.
inline constexpr Tolerance kRoundedWeights{.logits = 0.04, .logprob = 0.1, .gradient = 0.1};

inline double max_difference(const float* a, const float* b, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = std::fabs(double(a[i]) - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN is no agreement
    if (std::isnan(largest)) break;
  }
  return largest;
}
inline double relative_error(const float* a, const float* b, int64_t count) {
  double scale = 0;
  for (int64_t i = 0; i < count; ++i) scale = std::max<double>(scale, std::fabs(b[i]));
  return max_difference(a, b, count) / scale;
}
inline double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() ? max_difference(a.data(), b.data(), static_cast<int64_t>(a.size())) : INFINITY;
}
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() ? relative_error(a.data(), b.data(), static_cast<int64_t>(a.size())) : INFINITY;
}

}  // namespace lockstep::testing
