#include "data/order.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::data {
namespace {

TEST(DataOrder, FileOrderWrapsIntoTheNextEpoch) {
  DataOrder order(5, false, 1);
  EXPECT_EQ(order.rows(0, 3), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(order.rows(3, 3), (std::vector<int64_t>{3, 4, 0}));
}

TEST(DataOrder, EveryEpochIsAnotherPermutation) {
  DataOrder order(20, true, 7);
  const auto first = order.rows(0, 20), second = order.rows(20, 20);
  for (const auto& epoch : {first, second}) EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 20u);
  EXPECT_NE(first, second);
  EXPECT_NE(DataOrder(20, true, 8).rows(0, 20), first);
}

TEST(DataOrder, DependsOnThePositionAlone) {
  DataOrder order(20, true, 7), other(20, true, 7);
  order.rows(0, 20);
  EXPECT_EQ(order.rows(15, 10), other.rows(15, 10));
}

}  // namespace
}  // namespace lockstep::data
