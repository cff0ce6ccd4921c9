#include "kernels/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/transfer.h"

namespace lockstep::kernels {
namespace {

constexpr float kBound = 0.034641016f;
constexpr uint64_t kKey = 0x123456789abcdefull;
constexpr int64_t kCounts[] = {1, 3, 8, 21, 4097, 300'001};

std::vector<std::byte> filled(int64_t count, DType dtype, Stream& stream, int64_t skip = 0) {
  const auto bytes = static_cast<size_t>(count * dtype_bytes(dtype));
  Buffer memory(bytes + static_cast<size_t>(skip), Buffer::Fill::zero, stream.device());
  std::byte* const begin = static_cast<std::byte*>(memory.data()) + skip;
  fill_uniform(Tensor(begin, dtype, {count}), kBound, kKey, 5, stream);
  std::vector<std::byte> host(bytes);
  download(host.data(), begin, bytes, stream);
  return host;
}

TEST(RandomTest, NumbersArePhiloxOfTheirPlace) {
  Stream stream({.threads = 2});
  for (const int64_t count : kCounts) {
    const auto wide = filled(count, DType::f32, stream), half = filled(count, DType::bf16, stream);
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto quad = static_cast<uint32_t>(i / 4);
      const float wanted = (2 * uniform01(philox(kKey, {5, 0, quad, 0})[i % 4]) - 1) * kBound;
      ASSERT_EQ(reinterpret_cast<const float*>(wide.data())[i], wanted);
      ASSERT_EQ(reinterpret_cast<const BFloat16*>(half.data())[i].bits, to_bf16(wanted).bits);
      squares += double{wanted} * wanted;
    }
    if (count > 100'000) {
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 0.02, 1e-4);
    }
  }
}

TEST(RandomTest, RefusesOtherTypesAndGaps) {
  Stream stream({.threads = 1});
  std::vector<float> memory(6);
  EXPECT_THROW(fill_uniform(Tensor(memory.data(), DType::f16, {6}), 1, 1, 1, stream), DTypeError);
  EXPECT_THROW(fill_uniform(Tensor(memory.data(), DType::f32, {2, 3}).cols(0, 2), 1, 1, 1, stream), ShapeError);
}

TEST(RandomCuda, WritesTheBitsOfTheCpu) {
  if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  Stream cpu({.threads = 2}), gpu(StreamOptions{.device = Device::cuda});
  for (const int64_t count : kCounts)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t skip : {0, 4}) {  // aligned for vectors, and not
        const auto wanted = filled(count, dtype, cpu), got = filled(count, dtype, gpu, skip);
        EXPECT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size()), 0) << count << " " << dtype_name(dtype);
      }
}

}  // namespace
}  // namespace lockstep::kernels
