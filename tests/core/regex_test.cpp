#include "core/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep {
namespace {

using testing::expect_error;

std::vector<std::string> found(const Regex& regex, std::string_view text) {
  std::vector<std::string> matches;
  Regex::Search search(regex, text);
  while (const auto match = search.next()) matches.emplace_back(text.substr(match->begin, match->end - match->begin));
  return matches;
}

bool matches(std::string_view pattern, std::string_view text, bool whole, int64_t steps = 100000) {
  return Regex(pattern, {.counted = true}).matches(text, whole, steps);
}

TEST(Regex, FindsMatchesInOrderAndNoEmptyOnes) {
  EXPECT_EQ(found(Regex("b*"), "abbcb"), (std::vector<std::string>{"bb", "b"}));
  EXPECT_EQ(found(Regex("."), "\u00e9\u4e2d"), (std::vector<std::string>{"\u00e9", "\u4e2d"}));
  EXPECT_EQ(found(Regex("a"), ""), std::vector<std::string>{});
  EXPECT_EQ(found(Regex("^x", {.multiline = true}), "x\nxx\r\nx"), (std::vector<std::string>{"x", "x", "x"}));
  EXPECT_EQ(found(Regex("^x"), "x\nx"), std::vector<std::string>{"x"});
  EXPECT_EQ(found(Regex("."), "a\r\n"), (std::vector<std::string>{"a", "\r"}));  // \n alone ends a line
}

TEST(Regex, KnowsWhetherItCanMatchNothing) {
  EXPECT_TRUE(Regex("a*").can_match_nothing());
  EXPECT_FALSE(Regex("a+").can_match_nothing());
}

TEST(Regex, MatchesFromTheStartOrAltogether) {
  EXPECT_TRUE(matches("a|ab", "ab", true));  // goes back for the end
  EXPECT_TRUE(matches("a", "ab", false));
  EXPECT_FALSE(matches("a", "ab", true));
  EXPECT_FALSE(matches("b", "ab", false));
  EXPECT_FALSE(matches("a$", "a\n", true));
}

TEST(Regex, CountsItsSteps) {
  int64_t steps = 1000;
  const Regex regex("abc", {.counted = true});
  EXPECT_TRUE(regex.matches("abc", true, steps));
  EXPECT_LT(steps, 1000);
  EXPECT_GT(steps, 980);
  // (a*)*b looks at every way to cut up 40 a's; the last character lets no shortcut see that it fails.
  steps = 200'000;
  const std::string text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad";
  expect_error<ResourceError>([&] { Regex("(a*)*[bc]", {.counted = true}).matches(text, true, steps); },
                              {"regular expression could not be matched", "limit"});
  EXPECT_LT(steps, 0);
  expect_error<ResourceError>([&] { regex.matches("abc", true, steps); }, {"limit"});
}

TEST(Regex, BoundsItsMemory) {
  // Every character is a group to come back to.
  int64_t steps = int64_t{1} << 40;
  expect_error<ResourceError>(
      [&] { Regex("(?:(.)(.)?)*[xy]", {.counted = true}).matches(std::string(1 << 20, 'a'), true, steps); }, {"limit"});
}

TEST(Regex, SaysWhatIsMalformed) {
  expect_error<FormatError>([] { Regex regex("(a"); }, {"malformed regular expression", "(a", "parenthesis"});
  expect_error<FormatError>([] { Regex regex("(\\x{1}", {}, "(\\1"); }, {"(\\1"});
  expect_error<FormatError>([] { Regex regex("\\C"); }, {"\\C"});
  expect_error<FormatError>([] { Regex regex("\xff"); }, {"malformed regular expression"});
  expect_error<FormatError>([] { Regex regex("((a{1000}){1000}){1000}"); }, {"too large"});
}

}  // namespace
}  // namespace lockstep
