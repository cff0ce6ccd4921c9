#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

TEST(DTypes, SizesAndNames) {
  EXPECT_EQ(dtype_bytes(DType::f64), 8);
  EXPECT_EQ(dtype_bytes(DType::i64), 8);
  EXPECT_EQ(dtype_bytes(DType::f32), 4);
  EXPECT_EQ(dtype_bytes(DType::i32), 4);
  EXPECT_EQ(dtype_bytes(DType::bf16), 2);
  EXPECT_EQ(dtype_bytes(DType::f16), 2);
  EXPECT_EQ(dtype_bytes(DType::u8), 1);
  EXPECT_STREQ(dtype_name(DType::bf16), "bf16");
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const float wide = to_f32(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_f32(to_bf16(wide))));
    } else {
      ASSERT_EQ(to_bf16(wide).bits, x.bits);
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  const auto rounded = [](uint32_t bits) { return to_bf16(std::bit_cast<float>(bits)).bits; };
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // a tie goes to the even neighbour, here down
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // and here up
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);  // the largest float overflows to infinity
  EXPECT_EQ(rounded(0x80000001), 0x8000);
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

// The definition: (-1)^s 2^(e-15) (1 + m/1024), subnormals 2^-14 (m/1024).
TEST(Float16, EveryValueIsItsDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float got = to_f32(Float16{static_cast<uint16_t>(bits)});
    const int exponent = static_cast<int>(bits >> 10) & 31;
    const int mantissa = static_cast<int>(bits & 1023);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    double wanted = std::ldexp(mantissa / 1024.0, -14);
    if (exponent == 31)
      wanted = std::numeric_limits<double>::infinity();
    else if (exponent > 0)
      wanted = std::ldexp(1 + mantissa / 1024.0, exponent - 15);
    ASSERT_EQ(got, static_cast<float>(sign * wanted)) << bits;
    ASSERT_EQ(std::signbit(got), sign < 0) << bits;
  }
}

TEST(Tensor, ViewsOfRowsAndColumns) {
  std::vector<float> memory(12);
  for (size_t i = 0; i < 12; ++i) memory[i] = static_cast<float>(i);
  const Tensor x(memory.data(), DType::f32, {3, 4});
  EXPECT_EQ(x.elements(), 12);
  EXPECT_EQ(x.row_stride, 4);
  EXPECT_TRUE(x.contiguous());
  const Tensor rows = x.rows(1, 3);
  EXPECT_EQ(rows[0], 2);
  EXPECT_EQ(rows.row(0)[0], 4);
  EXPECT_TRUE(rows.contiguous());
  const Tensor cols = x.cols(1, 3);
  EXPECT_EQ(cols[1], 2);
  EXPECT_EQ(cols.row(2)[1], 10);
  EXPECT_FALSE(cols.contiguous());
  EXPECT_TRUE(cols.rows(1, 2).contiguous());
  EXPECT_EQ(cols.rows(1, 3).row(1)[0], 9);
  const ConstTensor view = cols;
  EXPECT_EQ(view.cols(1, 2).rows(2, 3).f32()[0], 10);
  EXPECT_EQ(shape_text(view), "f32 [3, 2]");
}

TEST(Tensor, ViewsCountInTheirOwnElementSize) {
  std::vector<uint16_t> memory(24);
  const Tensor x(memory.data(), DType::bf16, {2, 3, 4});
  EXPECT_EQ(x.row_elements(), 12);
  EXPECT_EQ(x.rows(1, 2).data, memory.data() + 12);
  const Tensor matrix(memory.data(), DType::bf16, {4, 6});
  EXPECT_EQ(matrix.cols(2, 4).rows(1, 2).data, memory.data() + 8);
}

TEST(Tensor, Misuse) {
  std::vector<uint16_t> memory(8);
  EXPECT_THROW(Tensor(memory.data(), DType::bf16, {8}).f32(), DTypeError);
  EXPECT_THROW(Tensor(memory.data(), DType::bf16, {8}).cols(0, 1), ShapeError);
  EXPECT_THROW(ConstTensor(memory.data(), DType::f16, {8}).row(0), DTypeError);
  EXPECT_TRUE(Tensor().empty());
  EXPECT_EQ(Tensor().elements(), 0);
}

TEST(RequireF32, NamesOpArgumentAndShapes) {
  std::vector<float> memory(6);
  const Tensor x(memory.data(), DType::f32, {2, 3});
  EXPECT_NO_THROW(require_f32(x, {2, 3}, "op", "x"));
  try {
    require_f32(x, {3, 2}, "op", "x");
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_EQ(error.fault().where, "op: x");
    EXPECT_EQ(error.fault().got, "f32 [2, 3]");
    EXPECT_EQ(error.fault().wanted, "f32 [3, 2]");
  }
  EXPECT_THROW(require_f32(x, {6}, "op", "x"), ShapeError);
  EXPECT_THROW(require_f32(x, {2, 3, 1}, "op", "x"), ShapeError);
  EXPECT_THROW(require_f32(ConstTensor(memory.data(), DType::i32, {2, 3}), {2, 3}, "op", "x"), DTypeError);
}

}  // namespace
}  // namespace lockstep
