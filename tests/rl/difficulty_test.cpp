#include "rl/difficulty.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep::rl {
namespace {

std::vector<int64_t> rows_of(const std::vector<DifficultyPools::Pick>& picks) {
  std::vector<int64_t> rows;
  for (const DifficultyPools::Pick& pick : picks) rows.push_back(pick.row);
  return rows;
}

using Rows = std::vector<int64_t>;

TEST(Difficulty, WithoutHistoryItIsTheOrderOfTheRows) {
  const DifficultyPools pools({.easy = 0.9, .hard = 0.1}, 6);
  data::DataOrder order(6, false, 0);
  const auto picks = pools.pick(order, 4, 4);
  EXPECT_EQ(rows_of(picks), (Rows{4, 5, 0, 1}));
  EXPECT_EQ(picks[3].walked, 4);
  EXPECT_EQ(pools.sizes().normal, 6);
}

TEST(Difficulty, EasyAndHardOnesArePassedBy) {
  DifficultyPools pools({.easy = 0.9, .hard = 0.1}, 8);
  data::DataOrder order(8, false, 0);
  pools.record(1, 1.0);
  pools.record(2, 0.0);
  pools.record(3, 0.5);
  pools.record(5, 0.9);
  const auto picks = pools.pick(order, 0, 4);
  EXPECT_EQ(rows_of(picks), (Rows{0, 3, 4, 6}));
  EXPECT_EQ(picks.back().walked, 7);
  EXPECT_EQ(pools.sizes().easy, 2);
  EXPECT_EQ(pools.sizes().hard, 1);
  EXPECT_EQ(pools.sizes().normal, 5);
  pools.record(1, 0.5);  // the last rewards count
  EXPECT_EQ(rows_of(pools.pick(order, 0, 4)), (Rows{0, 1, 3, 4}));
}

TEST(Difficulty, SharesOfThemAreRead) {
  DifficultyPools pools({.easy = 0.9, .hard = 0.1, .easy_fraction = 0.25, .hard_fraction = 0.5}, 8);
  data::DataOrder order(8, false, 0);
  for (const int64_t row : {0, 1, 2}) pools.record(row, 1.0);
  for (const int64_t row : {3, 4, 5}) pools.record(row, 0.0);
  EXPECT_EQ(rows_of(pools.pick(order, 0, 4)), (Rows{0, 3, 4, 6}));
}

TEST(Difficulty, WhatIsMissingIsFilledWithThosePassedByFirst) {
  DifficultyPools pools({.easy = 0.9}, 4);
  data::DataOrder order(4, false, 0);
  for (const int64_t row : {0, 1, 3}) pools.record(row, 1.0);
  const auto picks = pools.pick(order, 1, 3);
  EXPECT_EQ(rows_of(picks), (Rows{2, 1, 3}));
  EXPECT_EQ(picks.back().walked, 4);
  EXPECT_EQ(rows_of(pools.pick(order, 1, 6)), (Rows{2, 1, 3, 0, 1, 2}));  // more than there are
}

TEST(Difficulty, HistoryIsKept) {
  DifficultyPools pools({.easy = 0.9}, 4), other({.easy = 0.9}, 4);
  data::DataOrder order(4, true, 7);
  pools.record(0, 1.0);
  pools.record(2, 0.1);
  other.restore(Json::parse(pools.json().dump()));
  EXPECT_EQ(other.json(), pools.json());
  EXPECT_EQ(rows_of(other.pick(order, 3, 5)), rows_of(pools.pick(order, 3, 5)));
  for (const char* bad : {"{}", "[1]", "[[0]]", "[[4, 1.0]]", "[[-1, 1.0]]", "[[0, \"1\"]]"})
    EXPECT_THROW(other.restore(Json::parse(bad)), FormatError) << bad;
}

}  // namespace
}  // namespace lockstep::rl
