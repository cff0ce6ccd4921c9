// Between PEFT's row-major matrices and the layout that kernels read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

namespace lockstep::lora {

inline float as_f32(float value) {
  return value;
}
template <class Half>
float as_f32(Half value) {
  return to_f32(value);
}

// to[j, i] = from[i, j] as f32, for a matrix of rows x cols with free distances between rows. `Value` is float,
// BFloat16 or Float16. In squares, so that neither side is walked across its rows: a rank of 16 turns whole cache lines
// into whole cache lines.
template <class Value>
void transpose(float* to, int64_t to_stride, const Value* from, int64_t from_stride, int64_t rows, int64_t cols) {
  constexpr int64_t kSide = 16;
  const auto square = [&](int64_t row, int64_t col, int64_t height, int64_t width) {
    const Value* const in = from + row * from_stride + col;
    float* const out = to + col * to_stride + row;
    for (int64_t j = 0; j < width; ++j)
      for (int64_t i = 0; i < height; ++i) out[j * to_stride + i] = as_f32(in[i * from_stride + j]);
  };
  for (int64_t row = 0; row < rows; row += kSide)
    for (int64_t col = 0; col < cols; col += kSide)
      if (row + kSide <= rows && col + kSide <= cols)
        square(row, col, kSide, kSide);
      else
        square(row, col, std::min(kSide, rows - row), std::min(kSide, cols - col));
}

}  // namespace lockstep::lora
