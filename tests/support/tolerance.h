// How far numbers may lie from a reference, and why.
//
// bf16 keeps 8 significant bits: one rounding errs by up to 2^-9 = 0.2 % of a value, and a block of the model rounds
// about ten times between its input and its output. The errors of many elements are like noise, so a norm says much
// more about them than the largest one does: a wrong sign, scale, mask or position moves a norm by its own size.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/tensor.h"

namespace lockstep::testing {

struct Tolerance {
  bool largest = false;       // max|a - b| instead of the norm of a - b
  double logits = 0;          // relative to b's (max or norm)
  double logprob = 0;         // absolute: max, or root mean square; also of entropies
  double gradient = 0;        // relative, each tensor
  double whole_gradient = 0;  // relative, all tensors of an adapter together
};

// The CPU's f32 against transformers' f32: only the order of sums differs.
inline constexpr Tolerance kSameArithmetic{
    .largest = true, .logits = 1e-5, .logprob = 1e-5, .gradient = 1e-5, .whole_gradient = 1e-5};

// A GPU against f32 activations, with f32 weights or the same weights in bf16 (which makes little difference). Twice
// what the CPU shows on these models when its activations and their gradients are rounded to bf16 after every op:
// logits 0.016, log-probs 0.05, gradients 0.08 where a tensor's parts nearly cancel (k_proj, q_proj), all together
// 0.03.
inline constexpr Tolerance kRounded{.logits = 0.03, .logprob = 0.1, .gradient = 0.15, .whole_gradient = 0.06};

struct Difference {
  double of_largest = 0, of_norm = 0, root_mean_square = 0;
  double largest = 0;
};

inline Difference difference(const float* a, const float* b, int64_t count) {
  double largest = 0, largest_b = 0, squares = 0, squares_b = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double d = double(a[i]) - b[i];
    squares += d * d, squares_b += double(b[i]) * b[i];
    largest = std::fabs(d) > largest || std::isnan(d) ? std::fabs(d) : largest;
    largest_b = std::max<double>(largest_b, std::fabs(b[i]));
    if (std::isnan(d)) break;  // a NaN is no agreement
  }
  return {.of_largest = largest / largest_b,
          .of_norm = std::sqrt(squares / squares_b),
          .root_mean_square = std::sqrt(squares / static_cast<double>(count)),
          .largest = largest};
}
inline Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return {INFINITY, INFINITY, INFINITY, INFINITY};
  return difference(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace lockstep::testing
