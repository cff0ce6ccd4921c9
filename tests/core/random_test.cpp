#include "core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox(~0ull, {~0u, ~0u, ~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox(0x299f31d0a4093822ull, {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}),
            (std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
}

TEST(PhiloxTest, Uniform01StaysBelowOneAndIsExact) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_EQ(uniform01(255), 0.0f);
  EXPECT_EQ(uniform01(256), 0x1p-24f);
  EXPECT_EQ(uniform01(~0u), 1.0f - 0x1p-24f);
}

TEST(PermutationTest, HoldsEveryIndexOnce) {
  for (int64_t n : {0, 1, 2, 17, 1000}) {
    std::vector<int64_t> order = permutation(n, 3, 4), all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), int64_t{0});
    EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), all.begin(), all.end())) << n;
  }
}

TEST(PermutationTest, DependsOnSeedAndEpochOnly) {
  EXPECT_EQ(permutation(100, 1, 2), permutation(100, 1, 2));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 1, 3));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 2, 2));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 1, uint64_t{2} << 32));
}

// All 24 orders of four things, 24000 draws: chi-square with 23 degrees of freedom stays below its 99.99 % point.
TEST(PermutationTest, EveryOrderIsEquallyLikely) {
  std::vector<int> seen(256, 0);
  for (uint64_t epoch = 0; epoch < 24000; ++epoch) {
    const std::vector<int64_t> order = permutation(4, 99, epoch);
    ++seen[static_cast<size_t>(order[0] + 4 * order[1] + 16 * order[2] + 64 * order[3])];
  }
  double chi_square = 0;
  int orders = 0;
  for (int count : seen)
    if (count > 0) {
      ++orders;
      chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
    }
  EXPECT_EQ(orders, 24);
  EXPECT_LT(chi_square, 56.0);
}

}  // namespace
}  // namespace lockstep
