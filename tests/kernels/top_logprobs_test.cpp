#include "kernels/top_logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "core/transfer.h"
#include "kernels/logit_edits.h"
#include "support/gpu.h"

namespace lockstep::kernels {
namespace {

// Small integers: many equal entries.
std::vector<float> coarse_logits(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] =
        static_cast<float>(static_cast<int32_t>(philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0] % 41) - 20);
  return values;
}

void expect_sorted_lists(Stream& stream, int64_t rows, int64_t vocab, int64_t count) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(vocab) + ", " + std::to_string(count));
  const std::vector<float> values = coarse_logits(rows * vocab, 3);
  std::vector<float> lse(static_cast<size_t>(rows));
  std::vector<int32_t> targets(static_cast<size_t>(rows));
  for (size_t r = 0; r < lse.size(); ++r)
    lse[r] = 20.5f + static_cast<float>(r), targets[r] = static_cast<int32_t>(r * 7 % static_cast<size_t>(vocab));
  Arena arena(stream.device());
  const auto place = [&](const std::vector<float>& from) {
    return upload(std::span<const float>(from), arena, stream).data();
  };
  const Tensor logits(place(values), DType::f32, {rows, vocab}), sums(place(lse), DType::f32, {rows});
  const Tensor out = arena.alloc({rows, count});
  const auto ints = [&](int64_t n) {
    return std::span(static_cast<int32_t*>(arena.alloc_bytes(static_cast<size_t>(n) * 4)), static_cast<size_t>(n));
  };
  const TopLogprobs top{.tokens = ints(rows * count), .logprobs = out, .ranks = ints(rows)};
  top_logprobs(top, logits, sums, upload(std::span<const int32_t>(targets), arena, stream), 0.5f, stream);
  std::vector<int32_t> tokens(top.tokens.size()), ranks(lse.size());
  std::vector<float> logprobs(tokens.size());
  download(tokens.data(), top.tokens.data(), tokens.size() * 4, stream);
  download(ranks.data(), top.ranks.data(), ranks.size() * 4, stream);
  download(logprobs.data(), out.data, logprobs.size() * 4, stream);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = values.data() + r * vocab;
    std::vector<int32_t> order(static_cast<size_t>(vocab));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(tokens[static_cast<size_t>(r * count + i)], order[static_cast<size_t>(i)]) << r << ", " << i;
      EXPECT_EQ(logprobs[static_cast<size_t>(r * count + i)],
                row[order[static_cast<size_t>(i)]] * 0.5f - lse[static_cast<size_t>(r)]);
    }
    const float target = row[targets[static_cast<size_t>(r)]];
    EXPECT_EQ(ranks[static_cast<size_t>(r)], 1 + std::count_if(row, row + vocab, [&](float z) { return z > target; }));
  }
}

void expect_edits(Stream& stream) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1, -2, 3, 4, 0.5f, -6, 7, 8};
  const std::vector<LogitEdit> edits = {{.row = 0, .token = 0, .add = 1, .divide = 4, .subtract = 0.25f},
                                        {.row = 0, .token = 1, .divide = 2},
                                        {.row = 1, .token = 3, .add = kNever, .divide = 2},
                                        {.row = 1, .token = 1, .subtract = 1}};
  const std::vector<float> wanted = {0.25f, -4, 3, 4, 0.5f, -7, 7, kNever};
  Arena arena(stream.device());
  const Tensor logits(upload(std::span<const float>(values), arena, stream).data(), DType::f32, {2, 4});
  edit_logits(logits, upload(std::span<const LogitEdit>(edits), arena, stream), stream);
  std::vector<float> got(values.size());
  download(got.data(), logits.data, got.size() * 4, stream);
  EXPECT_EQ(got, wanted);
}

TEST(TopLogprobs, ListsTheLargestInOrder) {
  Stream stream({.threads = 2});
  expect_sorted_lists(stream, 1, 1, 1);
  expect_sorted_lists(stream, 5, 97, 20);
  expect_sorted_lists(stream, 3, 5000, 128);
  expect_sorted_lists(stream, 2, 30, 30);
}

class TopLogprobsCuda : public lockstep::testing::OnGpu<> {};
TEST_F(TopLogprobsCuda, ListsTheLargestInOrder) {
  Stream& stream = gpu();
  expect_sorted_lists(stream, 1, 1, 1);
  expect_sorted_lists(stream, 5, 97, 20);
  expect_sorted_lists(stream, 64, 151936, 20);
  expect_sorted_lists(stream, 3, 5000, 128);
  expect_sorted_lists(stream, 2, 30, 30);
}

TEST(TopLogprobs, RefusesListsLongerThanTheVocabulary) {
  Stream stream({.threads = 1});
  std::vector<float> memory(64);
  std::vector<int32_t> tokens(10);
  const Tensor logits(memory.data(), DType::f32, {2, 4}), lse(memory.data(), DType::f32, {2});
  const Tensor out(memory.data() + 16, DType::f32, {2, 5});
  EXPECT_THROW(top_logprobs({.tokens = tokens, .logprobs = out}, logits, lse, {}, 1, stream), ShapeError);
}

TEST(LogitEdits, BiasThenRepetitionThenTheOthers) {
  Stream stream({.threads = 1});
  expect_edits(stream);
  const std::vector<LogitEdit> outside = {{.row = 2, .token = 0}};
  std::vector<float> memory(8);
  EXPECT_THROW(edit_logits(Tensor(memory.data(), DType::f32, {2, 4}), outside, stream), ShapeError);
}

class LogitEditsCuda : public lockstep::testing::OnGpu<> {};
TEST_F(LogitEditsCuda, BiasThenRepetitionThenTheOthers) {
  expect_edits(gpu());
}

}  // namespace
}  // namespace lockstep::kernels
