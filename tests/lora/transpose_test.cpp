#include "lora/transpose.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::lora {
namespace {

// Exact in every type.
float value_at(int64_t row, int64_t col) {
  return static_cast<float>((row * 37 + col * 5) % 128) - 64;
}
template <class Value>
Value as(float value) {
  if constexpr (std::is_same_v<Value, float>) return value;
  if constexpr (std::is_same_v<Value, BFloat16>) return to_bf16(value);
}

template <class Value>
void expect_transposed(int64_t rows, int64_t cols) {
  constexpr float kUntouched = -1000;
  const int64_t from_stride = cols + 3, to_stride = rows + 5;
  std::vector<Value> from(static_cast<size_t>(rows * from_stride));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) from[static_cast<size_t>(i * from_stride + j)] = as<Value>(value_at(i, j));
  std::vector<float> to(static_cast<size_t>(cols * to_stride), kUntouched);
  transpose(to.data(), to_stride, from.data(), from_stride, rows, cols);
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t i = 0; i < to_stride; ++i)
      ASSERT_EQ(to[static_cast<size_t>(j * to_stride + i)], i < rows ? value_at(i, j) : kUntouched)
          << rows << " x " << cols << " at " << i << ", " << j;
}

TEST(Transpose, EverySizeAndNothingBeside) {
  for (const int64_t rows : {1, 3, 15, 16, 17, 32, 50})
    for (const int64_t cols : {1, 8, 16, 31, 33, 64}) {
      expect_transposed<float>(rows, cols);
      expect_transposed<BFloat16>(rows, cols);
    }
}

}  // namespace
}  // namespace lockstep::lora
