#include "train/datum.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace lockstep::train {
namespace {

TEST(Datum, ShiftsTokensIntoRowsAndTargets) {
  const Datum datum = make_datum({7, 8, 9, 10}, {0, 0, 1, 1});
  EXPECT_EQ(datum.tokens, (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(datum.targets, (std::vector<int32_t>{-1, 9, 10}));
  EXPECT_EQ(datum.weights, (std::vector<float>{0, 1, 1}));
  EXPECT_EQ(datum.size(), 3);
  EXPECT_EQ(datum.weight_sum(), 2);
}

TEST(Datum, KeepsFractionalWeights) {
  const Datum datum = make_datum({1, 2, 3}, {0, 0.25f, 0.5f});
  EXPECT_EQ(datum.targets, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(datum.weight_sum(), 0.75);
}

TEST(Datum, RefusesWhatCannotBeLearned) {
  EXPECT_THROW(make_datum({1, 2, 3}, {1, 0, 1}), DataError);  // nothing comes before the first token
  EXPECT_THROW(make_datum({1, 2, 3}, {0, 0, 0}), DataError);
  EXPECT_THROW(make_datum({1, 2, 3}, {0, 1}), DataError);
  EXPECT_THROW(make_datum({1}, {0}), DataError);
  EXPECT_THROW(make_datum({}, {}), DataError);
  EXPECT_THROW(make_datum({1, 2}, {0, -1}), DataError);
  EXPECT_THROW(make_datum({1, 2}, {0, std::numeric_limits<float>::quiet_NaN()}), DataError);
  EXPECT_THROW(make_datum({1, 2}, {0, std::numeric_limits<float>::infinity()}), DataError);
}

}  // namespace
}  // namespace lockstep::train
