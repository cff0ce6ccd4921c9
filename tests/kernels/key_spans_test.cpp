#include "kernels/key_spans.h"

#include <gtest/gtest.h>

#include <array>
#include <tuple>

namespace lockstep::kernels {
namespace {

constexpr size_t kBlocks = kKeySpan / kKvBlock;

// Block tables by the names of their spans: letters name memory, each of a whole span.
class KeySpansTest : public ::testing::Test {
 protected:
  // One sequence; the spans it names end where `position` lies, or before.
  void add(const std::string& spans, int64_t position) {
    std::vector<void*>& table = tables_.emplace_back();
    for (const char name : spans)
      for (size_t b = 0; b < kBlocks; ++b) table.push_back(&memory_[static_cast<size_t>(name - 'a') * kBlocks + b]);
    positions_.push_back(position);
  }
  void add(const std::string& spans) { add(spans, static_cast<int64_t>(spans.size()) * kKeySpan - 1); }

  KeySpans plan(int64_t group) const {
    std::vector<AttentionSequence> sequences;
    for (size_t i = 0; i < tables_.size(); ++i)
      sequences.push_back({.rows = 1, .first_position = positions_[i], .blocks = tables_[i]});
    return shared_key_spans(sequences, {.heads = 3 * group, .kv_heads = 3, .head_dim = 16});
  }
  using Entry = std::tuple<int32_t, int32_t, int32_t>;  // sequence, count, span
  std::vector<Entry> shared(int64_t group) const {
    std::vector<Entry> entries;
    for (const SharedSpan& span : plan(group).shared) entries.emplace_back(span.sequence, span.count, span.span);
    return entries;
  }

  std::array<char, 26 * kBlocks> memory_{};
  std::vector<std::vector<void*>> tables_;
  std::vector<int64_t> positions_;
};

TEST_F(KeySpansTest, SamplesOfAPromptShareItsSpans) {
  add("abx"), add("aby"), add("abz"), add("cdv"), add("cdw"), add("e");
  EXPECT_EQ(shared(4), (std::vector<Entry>{{0, 3, 0}, {3, 2, 0}, {0, 3, 1}, {3, 2, 1}}));
  EXPECT_EQ(plan(4).first_own, (std::vector<int32_t>{2, 2, 2, 2, 2, 0}));
}

TEST_F(KeySpansTest, NobodySharesWhatNobodyElseHas) {
  add("abc"), add("dbc"), add("efg");
  EXPECT_EQ(shared(1), std::vector<Entry>());
  EXPECT_EQ(plan(1).first_own, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_TRUE(shared_key_spans({}, {.heads = 1, .kv_heads = 1, .head_dim = 16}).shared.empty());
}

TEST_F(KeySpansTest, OnlyNeighboursShare) {
  add("ax"), add("by"), add("az"), add("av");
  EXPECT_EQ(shared(1), (std::vector<Entry>{{2, 2, 0}}));
  EXPECT_EQ(plan(1).first_own, (std::vector<int32_t>{0, 0, 1, 1}));
}

// The position itself is written in the step, so its span is the sequence's own.
TEST_F(KeySpansTest, ASharedSpanLiesBelowEveryPosition) {
  const std::vector<int32_t> none = {0, 0}, one = {1, 1};
  for (const auto& [position, wanted] : {std::pair{1, none}, {255, none}, {256, one}, {300, one}, {511, one}}) {
    tables_.clear(), positions_.clear();
    add("ax", 500), add("ax", position);
    EXPECT_EQ(plan(2).first_own, wanted) << position;
  }
  tables_.clear(), positions_.clear();
  add("abx", 512), add("aby", 700), add("abz", 511);
  EXPECT_EQ(shared(2), (std::vector<Entry>{{0, 3, 0}, {0, 2, 1}}));
  EXPECT_EQ(plan(2).first_own, (std::vector<int32_t>{2, 2, 1}));
}

TEST_F(KeySpansTest, EveryBlockOfASpanIsTheSame) {
  for (size_t block = 0; block < kBlocks; ++block) {
    tables_.clear(), positions_.clear();
    add("ax"), add("ax");
    tables_[1][block] = &memory_.back();
    EXPECT_TRUE(shared(1).empty()) << block;
  }
  tables_.clear(), positions_.clear();
  add("ax"), add("ax");
  tables_[1][kBlocks] = &memory_.back();
  EXPECT_EQ(shared(1).size(), 1u);
}

TEST_F(KeySpansTest, LongerRunsAreCutIntoNearlyEqualParts) {
  for (int i = 0; i < 9; ++i) add("ax");
  EXPECT_EQ(shared(1), (std::vector<Entry>{{0, 9, 0}}));
  EXPECT_EQ(shared(2), (std::vector<Entry>{{0, 4, 0}, {4, 5, 0}}));
  EXPECT_EQ(shared(5), (std::vector<Entry>{{0, 3, 0}, {3, 3, 0}, {6, 3, 0}}));
  EXPECT_EQ(shared(8), (std::vector<Entry>{{0, 1, 0}, {1, 2, 0}, {3, 2, 0}, {5, 2, 0}, {7, 2, 0}}));
  for (const int group : {9, 16, 20}) EXPECT_TRUE(shared(group).empty()) << group;
}

}  // namespace
}  // namespace lockstep::kernels
