// What the cases of matmuls share: tolerances, names and inputs.
#pragma once

#include <algorithm>

#include "kernels/lora.h"
#include "kernels/op_case.h"

namespace lockstep::kernels::testing {

inline constexpr double kRounded = 1.0 / 128, kSummed = 2e-4;

inline std::string shape_of(std::initializer_list<int64_t> dims) {
  std::string text = " [";
  for (const int64_t dim : dims) text += (text.back() == '[' ? "" : ", ") + std::to_string(dim);
  return text + "]";
}

// The speed cases have hundreds of millions: they repeat after a prime number.
inline std::vector<float> values(int64_t count, uint64_t seed, float scale = 1) {
  constexpr int64_t kPeriod = 4194301;
  std::vector<float> result = random_values(std::min(count, kPeriod), seed, scale);
  result.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(result.size()) < count)
    result.insert(result.end(), result.begin(),
                  result.begin() + std::min(kPeriod, count - static_cast<int64_t>(result.size())));
  return result;
}

// A view of `cols` columns inside wider rows, holding random values.
inline Tensor inside_wider_rows(Workbench& bench, int64_t rows, int64_t cols, int64_t before, int64_t after,
                                uint64_t seed) {
  const int64_t width = before + cols + after;
  return bench.activations(values(rows * width, seed), {rows, width}).cols(before, before + cols);
}

// Rows, width of x, and each pair's rank and outputs.
struct LoraShape {
  int64_t rows, in;
  std::vector<int64_t> ranks, outs;
  int64_t gap = 0;  // columns between the outputs of two pairs, and around x

  int64_t out() const {
    int64_t sum = 0;
    for (const int64_t o : outs) sum += o + gap;
    return sum;
  }
  int64_t rank() const {
    int64_t sum = 0;
    for (const int64_t r : ranks) sum += r;
    return sum;
  }
  std::string text() const {
    std::string t = shape_of({rows, in, out()}) + " ranks";
    for (const int64_t r : ranks) t += " " + std::to_string(r);
    return t;
  }
};
std::vector<LoraPair> make_lora_pairs(Workbench& bench, const LoraShape& s);  // lora_cases.cpp

}  // namespace lockstep::kernels::testing
