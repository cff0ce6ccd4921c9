#include "rl/advantage.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace lockstep::rl {
namespace {

void expect_advantages(const std::vector<float>& rewards, bool normalize_std, const std::vector<double>& wanted) {
  const std::vector<float> got = group_advantages(rewards, {.normalize_std = normalize_std});
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_FLOAT_EQ(got[i], static_cast<float>(wanted[i])) << "sample " << i;
}

// (r - r.mean()) / (r.std(ddof=1) + 1e-6) of numpy in float64.
TEST(GroupAdvantages, AgreesWithNumpy) {
  expect_advantages({1, 0, 0, 1}, true,
                    {0.8660239037870368, -0.8660239037870368, -0.8660239037870368, 0.8660239037870368});
  expect_advantages({0.5f, 2.25f, -1, 3}, true,
                    {-0.3828932854453008, 0.5917441684154648, -1.2182968173259572, 1.009445934355793});
  const double hit = 1.6201816746095261, miss = -0.5400605582031753;
  expect_advantages({1, 0, 0, 0, 0, 0, 0, 1}, true, {hit, miss, miss, miss, miss, miss, miss, hit});
}

TEST(GroupAdvantages, OnlyCentersWithoutStd) {
  expect_advantages({0.5f, 2.25f, -1, 3}, false, {-0.6875, 1.0625, -2.1875, 1.8125});
}

TEST(GroupAdvantages, IsTheRewardWithoutCentering) {
  EXPECT_EQ(group_advantages(std::vector<float>{1, 0.5f}, {.center = false}), (std::vector<float>{1, 0.5f}));
}

TEST(GroupAdvantages, IsExactlyZeroWithoutSpread) {
  EXPECT_EQ(group_advantages(std::vector<float>{0.1f, 0.1f, 0.1f}, {}), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(group_advantages(std::vector<float>{3}, {}), (std::vector<float>{0}));
  EXPECT_TRUE(group_advantages({}, {}).empty());
}

TEST(GroupAdvantages, RefusesRewardsThatAreNotNumbers) {
  EXPECT_THROW(group_advantages(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()}, {}), DataError);
  EXPECT_THROW(group_advantages(std::vector<float>{std::numeric_limits<float>::infinity()}, {.center = false}),
               DataError);
}

}  // namespace
}  // namespace lockstep::rl
