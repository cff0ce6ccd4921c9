// Samples are dealt to gradient lanes so that these are equally heavy, by the samples' lengths alone.
#include "train/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tiny.h"
#include "train/lane_range.h"

namespace lockstep::train {
namespace {

using namespace testing;

std::vector<Datum> datums_of(const std::vector<int64_t>& lengths) {
  std::vector<Datum> datums;
  for (const int64_t length : lengths) {
    const std::vector<int32_t> tokens(static_cast<size_t>(length) + 1, 1);
    std::vector<float> mask(tokens.size(), 1.0f);
    mask[0] = 0;
    datums.push_back(make_datum(tokens, mask));
  }
  return datums;
}

std::vector<int64_t> order_of(const std::vector<int64_t>& lengths, int64_t per_term = 1, int lanes = 8,
                              Balance balance = Balance::tokens) {
  return balanced_order(datums_of(lengths), per_term, lanes, balance, tiny_config());
}

// The heaviest lane over the mean.
double imbalance(const std::vector<int64_t>& lengths, const std::vector<int64_t>& order, int lanes) {
  std::vector<double> tokens(static_cast<size_t>(lanes));
  const auto count = static_cast<int64_t>(lengths.size());
  for (int64_t i = 0; i < count; ++i)
    tokens[static_cast<size_t>(lane_of(i, count, lanes))] +=
        static_cast<double>(lengths[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  return std::ranges::max(tokens) * lanes / std::accumulate(tokens.begin(), tokens.end(), 0.0);
}

TEST(Balance, LanesAreAboutEquallyHeavy) {
  std::vector<int64_t> lengths, as_they_are;
  for (int64_t i = 0; i < 64; ++i) {
    lengths.push_back(10 + 13 * i);  // sorted: the last lane would have most of all
    as_they_are.push_back(i);
  }
  EXPECT_GT(imbalance(lengths, as_they_are, 8), 1.8);
  EXPECT_LT(imbalance(lengths, order_of(lengths), 8), 1.01);
}

TEST(Balance, EverySampleIsTakenOnceAndTermsStayTogether) {
  for (const int64_t count : {1, 7, 8, 9, 24, 61}) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 2 * count; ++i) lengths.push_back(2 + i * i % 17);
    for (const int64_t per_term : {1, 2}) {
      std::vector<int64_t> order = order_of(lengths, per_term);
      for (size_t i = 0; i < order.size(); i += static_cast<size_t>(per_term)) {
        EXPECT_EQ(order[i] % per_term, 0);
        if (per_term == 2) {
          EXPECT_EQ(order[i + 1], order[i] + 1);
        }
      }
      std::ranges::sort(order);
      for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], static_cast<int64_t>(i));
    }
  }
}

TEST(Balance, EqualSamplesStayInTheOrderThatRanksWouldTake) {
  const std::vector<int64_t> order = order_of(std::vector<int64_t>(16, 5));
  EXPECT_EQ(order, order_of(std::vector<int64_t>(16, 9))) << "a function of which is longer, not of the lengths";
  for (size_t lane = 0; lane < 8; ++lane) EXPECT_LT(order[2 * lane], order[2 * lane + 1]);
}

TEST(Balance, AttentionMakesLongSamplesDearer) {
  model::ModelSpec deep = tiny_config();
  deep.layers = 1'000'000;  // attention is all that counts
  const std::vector<Datum> datums = datums_of({100, 60, 40, 30, 20, 10});
  using Order = std::vector<int64_t>;
  // By tokens 100 + 30 + 10 and 60 + 40 + 20; by their squares the longest is as dear as three of the others.
  EXPECT_EQ(balanced_order(datums, 1, 2, Balance::tokens, deep), (Order{0, 3, 5, 1, 2, 4}));
  EXPECT_EQ(balanced_order(datums, 1, 2, Balance::flops, deep), (Order{0, 4, 5, 1, 2, 3}));
}

}  // namespace
}  // namespace lockstep::train
