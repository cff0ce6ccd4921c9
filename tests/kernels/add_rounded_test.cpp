#include "kernels/add_rounded.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/row_testing.h"
#include "support/temp_directory.h"

namespace lockstep::kernels {
namespace {

float value_of(DType dtype, const void* data, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == DType::bf16 ? to_f32(BFloat16{bits}) : to_f32(Float16{bits});
}

constexpr DType kStored[] = {DType::f32, DType::bf16, DType::f16};

// Every value of 16 bits as a weight, and updates around and between what can be stored.
TEST(AddRoundedTest, NearestValueOfTheSumOnEveryInstructionSet) {
  constexpr int64_t kCount = 65536 - 3;  // no whole number of vectors
  std::vector<uint16_t> halves(kCount);
  std::vector<float> floats(kCount), delta(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    halves[i] = static_cast<uint16_t>(i);
    floats[i] = std::ldexp(uniform01(philox(1, {uint32_t(i), 0, 0, 0})[0]) - 0.5f, static_cast<int>(i % 30) - 15);
    delta[i] = std::ldexp(uniform01(philox(2, {uint32_t(i), 0, 0, 0})[0]) - 0.5f, static_cast<int>(i % 41) - 28);
  }
  for (const CpuIsa isa : {CpuIsa::avx2, CpuIsa::best}) {
    Stream stream({.threads = 1, .isa = isa});
    for (const DType from : kStored)
      for (const DType to : kStored) {
        const ConstTensor weight(from == DType::f32 ? static_cast<const void*>(floats.data()) : halves.data(), from,
                                 {kCount});
        std::vector<uint32_t> memory(kCount);
        const Tensor out(memory.data(), to, {kCount});
        add_rounded(out, weight, ConstTensor(delta.data(), DType::f32, {kCount}), 0.75f, stream);
        for (int64_t i = 0; i < kCount; ++i) {
          const float sum = std::fma(0.75f, delta[i], value_of(from, weight.data, i)), got = value_of(to, out.data, i);
          if (std::isnan(sum)) {
            ASSERT_TRUE(std::isnan(got)) << i;
            continue;
          }
          if (to == DType::f32) {
            ASSERT_EQ(got, sum) << i;
          } else if (to == DType::bf16) {
            ASSERT_EQ(static_cast<const uint16_t*>(out.data)[i], to_bf16(sum).bits) << i;
          } else if (std::fabs(sum) >= 65520) {
            ASSERT_EQ(got, std::copysign(std::numeric_limits<float>::infinity(), sum)) << i;
          } else {
            const float step = std::max(0x1p-24f, std::ldexp(1.0f, std::ilogb(sum) - 10));
            ASSERT_EQ(got, std::nearbyint(sum / step) * step) << i;
          }
        }
      }
  }
}

TEST(AddRoundedTest, WithoutAnUpdateBitsOfOneTypeStay) {
  std::vector<uint16_t> halves(1000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i * 61);
  Stream stream({.threads = 1});
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<uint16_t> out(halves);
    const Tensor same(out.data(), dtype, {10, 100});
    add_rounded(same, same, {}, 1, stream);  // in place
    for (size_t i = 0; i < out.size(); ++i)
      if (!std::isnan(value_of(dtype, halves.data(), static_cast<int64_t>(i)))) {
        ASSERT_EQ(out[i], halves[i]);
      }
  }
}

TEST(AddRoundedTest, RefusesOtherSizesAndTypes) {
  Stream stream({.threads = 1});
  std::vector<float> memory(16);
  const Tensor six(memory.data(), DType::f32, {6}), seven(memory.data(), DType::f32, {7}),
      ids(memory.data(), DType::i32, {6});
  const Tensor apart = Tensor(memory.data(), DType::f32, {2, 6}).cols(0, 3);
  using lockstep::testing::expect_error;
  expect_error<ShapeError>([&] { add_rounded(six, seven, {}, 1, stream); }, {"add_rounded: weight"});
  expect_error<ShapeError>([&] { add_rounded(six, six, seven, 1, stream); }, {"add_rounded: delta"});
  expect_error<ShapeError>([&] { add_rounded(six, apart, {}, 1, stream); }, {"add_rounded: weight", "side by side"});
  expect_error<DTypeError>([&] { add_rounded(six, ids, {}, 1, stream); }, {"i32"});
  expect_error<DTypeError>([&] { add_rounded(six, six, Tensor(memory.data(), DType::bf16, {6}), 1, stream); },
                           {"bf16"});
}

}  // namespace
}  // namespace lockstep::kernels
