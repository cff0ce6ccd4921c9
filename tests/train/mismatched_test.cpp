#include "train/mismatched.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep::train {
namespace {

// A prompt of two tokens, then the completion.
Datum datum(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion) {
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), completion.begin(), completion.end());
  std::vector<float> mask(tokens.size(), 1.0f);
  std::fill_n(mask.begin(), prompt.size(), 0.0f);
  return make_datum(tokens, mask);
}

void expect_equal(const Datum& got, const Datum& wanted) {
  EXPECT_EQ(got.tokens, wanted.tokens);
  EXPECT_EQ(got.targets, wanted.targets);
  EXPECT_EQ(got.weights, wanted.weights);
}

// TRL's _get_kl_dataset: completions move on by one, the last one to the front.
TEST(Mismatched, EachPromptGetsTheCompletionBeforeIt) {
  const std::vector<Datum> batch = {datum({1, 2}, {3, 4}), datum({5}, {6}), datum({7, 8, 9}, {10, 11, 12})};
  const std::vector<Datum> pairs = mismatched(batch, 100);
  ASSERT_EQ(pairs.size(), 3u);
  expect_equal(pairs[0], datum({1, 2}, {10, 11, 12}));
  expect_equal(pairs[1], datum({5}, {3, 4}));
  expect_equal(pairs[2], datum({7, 8, 9}, {6}));
}

TEST(Mismatched, LongOnesAreCutAtTheirEnds) {
  const std::vector<Datum> batch = {datum({1, 2}, {3, 4}), datum({7, 8, 9}, {10, 11, 12})};
  EXPECT_EQ(mismatched(batch, 3)[0].tokens, (std::vector<int32_t>{1, 2, 10}));
  EXPECT_EQ(mismatched(batch, 3)[0].targets, (std::vector<int32_t>{-1, 10, 11}));
}

TEST(Mismatched, OneRowHasNoOther) {
  const std::vector<Datum> batch = {datum({1, 2}, {3, 4})};
  EXPECT_TRUE(mismatched(batch, 100).empty());
  Datum empty = batch[0];
  empty.weights.assign(empty.weights.size(), 0.0f);
  EXPECT_THROW(joined(empty, batch[0], 100), DataError);
}

TEST(Mismatched, ARatioIsOverTheCompletion) {
  const Datum one = datum({1, 2}, {3, 4});
  EXPECT_EQ(log_ratio(one, std::vector<float>{-9, -1, -2}, std::vector<float>{-1, -1.5f, -2.25f}), 0.75);
}

}  // namespace
}  // namespace lockstep::train
