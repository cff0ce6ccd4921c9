// Text of a growing sample: whole characters, stop strings held back and left out.
#include "recipes/choice_text.h"

#include <gtest/gtest.h>

namespace lockstep::recipes {
namespace {

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer loaded = text::Tokenizer::load(LOCKSTEP_SOURCE_DIR "/models/arith");
  return loaded;
}

std::vector<int32_t> ids(const std::string& text) {
  return tokenizer().encode(text);
}

// What is shown after each token, joined by '|'.
std::string shown(ChoiceText& text, const std::vector<int32_t>& tokens) {
  std::string all;
  for (const int32_t token : tokens) all += text.push(token) + "|";
  return all;
}

TEST(StopMatcher, FindsWhatIsThere) {
  StopMatcher stop("aab");
  std::string ends;
  for (const char c : std::string("aaabxaab")) ends += stop.push(c) ? '1' : '0';
  EXPECT_EQ(ends, "00010001");
  StopMatcher twice("aa");
  ends.clear();
  for (const char c : std::string("aaaa")) ends += twice.push(c) ? '1' : '0';
  EXPECT_EQ(ends, "0111") << "overlapping";
  EXPECT_EQ(twice.begun(), 1u);
}

TEST(ChoiceText, WithoutStopsTextIsShownAtOnce) {
  ChoiceText text(tokenizer(), {});
  EXPECT_EQ(shown(text, ids("12+")), "1|2|+|");
  EXPECT_EQ(text.finish(), "");
}

TEST(ChoiceText, CharactersAreWhole) {
  ChoiceText text(tokenizer(), {});
  const std::vector<int32_t> euro = ids("€");
  ASSERT_GT(euro.size(), 1u) << "one token for it: choose another character";
  std::string all;
  for (const int32_t token : euro) all += text.push(token);
  EXPECT_EQ(all, "€");
  ChoiceText cut(tokenizer(), {});
  EXPECT_EQ(cut.push(euro[0]), "");
  EXPECT_EQ(cut.finish(), "") << "half a character is not shown";
}

TEST(ChoiceText, HoldsBackWhatMayBecomeAStop) {
  ChoiceText text(tokenizer(), {.stop = {"+3="}});
  EXPECT_EQ(shown(text, ids("1+2+3")), "1||+2|||") << "1, then + is held, then +2 is not the stop";
  EXPECT_EQ(text.finish_by_text(ids("=")[0], 0), "");
  ChoiceText kept(tokenizer(), {.stop = {"+3="}});
  shown(kept, ids("1+3"));
  EXPECT_EQ(kept.finish(), "+3") << "it never came";
}

TEST(ChoiceText, TheStopMayStayInTheText) {
  ChoiceText text(tokenizer(), {.stop = {"+3="}, .include_stop = true});
  EXPECT_EQ(shown(text, ids("1+3")), "1|+|3|");
  EXPECT_EQ(text.finish_by_text(ids("=")[0], 0), "=");
}

TEST(ChoiceText, OfTwoStopsTheOneThatCameCuts) {
  ChoiceText text(tokenizer(), {.stop = {"123456", "34"}});
  EXPECT_EQ(shown(text, ids("123")), "|||");
  EXPECT_EQ(text.finish_by_text(ids("4")[0], 1), "12");
}

TEST(ChoiceText, AStopOfManyBytes) {
  ChoiceText text(tokenizer(), {.stop = {"€€"}});
  std::string all;
  const std::vector<int32_t> tokens = ids("x€y€€");
  for (size_t i = 0; i + 1 < tokens.size(); ++i) all += text.push(tokens[i]);
  EXPECT_EQ(all, "x€y");
  EXPECT_EQ(text.finish_by_text(tokens.back(), 0), "");
}

TEST(ChoiceText, StopTokensAreLeftOutUnlessAskedFor) {
  ChoiceText out(tokenizer(), {.stop = {"5x"}});
  EXPECT_EQ(shown(out, ids("15")), "1||");
  EXPECT_EQ(out.finish_by_token(ids("=")[0]), "5");
  ChoiceText in(tokenizer(), {.include_stop = true});
  EXPECT_EQ(in.finish_by_token(ids("=")[0]), "=");
}

TEST(ChoiceText, SpecialTokensHaveNoTextUnlessAskedFor) {
  constexpr int32_t kEnd = 0;
  ChoiceText skipped(tokenizer(), {}), kept(tokenizer(), {.skip_special = false});
  EXPECT_EQ(skipped.push(kEnd), "");
  EXPECT_EQ(kept.push(kEnd), "<|endoftext|>");
}

}  // namespace
}  // namespace lockstep::recipes
