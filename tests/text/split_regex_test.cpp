#include "text/split_regex.h"

#include <vector>

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::text {
namespace {

using lockstep::testing::expect_error;

std::vector<std::string> pieces(const char* pattern, std::string_view text) {
  std::vector<std::string> list;
  std::vector<Span> matches;
  SearchBudget budget(text.size());
  SplitRegex(pattern).find(text, matches, budget);
  size_t done = 0;
  const auto add = [&](size_t end) {
    if (end > done) list.emplace_back(text.substr(done, end - done));
    done = end;
  };
  for (const Span& match : matches) add(match.begin), add(match.end);
  add(text.size());
  return list;
}

using Pieces = std::vector<std::string>;

TEST(SplitRegex, MatchesAndWhatLiesBetween) {
  EXPECT_EQ(pieces("b+", "abbcb"), (Pieces{"a", "bb", "c", "b"}));
  EXPECT_EQ(pieces("x", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(pieces("a", ""), Pieces{});
  EXPECT_EQ(pieces("a(?!b)", "abaa"), (Pieces{"ab", "a", "a"}));
}

TEST(SplitRegex, ClassesOfTheTables) {
  EXPECT_EQ(pieces("\\p{L}+", "a\u00e9\u4e2d1"), (Pieces{"a\u00e9\u4e2d", "1"}));
  EXPECT_EQ(pieces("\\p{N}+", "1\u0663\u2167\u00bdx"), (Pieces{"1\u0663\u2167\u00bd", "x"}));
  EXPECT_EQ(pieces("\\s+", "a \u00a0\u3000\u0085b"), (Pieces{"a", " \u00a0\u3000\u0085", "b"}));
  EXPECT_EQ(pieces("\\S+", " ab "), (Pieces{" ", "ab", " "}));
  EXPECT_EQ(pieces("[^\\s\\p{L}]+", "a!1 b"), (Pieces{"a", "!1", " b"}));
  EXPECT_EQ(pieces("\\[[\\]x]\\\\", "a[x\\b"), (Pieces{"a", "[x\\", "b"}));
  // Letters of Unicode 16, which many PCRE2 do not know.
  EXPECT_EQ(pieces("\\p{L}+", "\U000105C0\U000105C1!"), (Pieces{"\U000105C0\U000105C1", "!"}));
}

TEST(SplitRegex, CategoriesOfTheTables) {
  EXPECT_EQ(pieces("\\p{Lu}+", "aB\u00c9c\u01c5"), (Pieces{"a", "B\u00c9", "c\u01c5"}));
  EXPECT_EQ(pieces("[\\p{Ll}\\p{M}]+", "Aa\u0301B"), (Pieces{"A", "a\u0301", "B"}));
  EXPECT_EQ(pieces("[\\p{P}\\p{S}]+", "a+-\u20acb"), (Pieces{"a", "+-\u20ac", "b"}));
  EXPECT_EQ(pieces("\\P{L}+|\\p{^N}+", "a1 b"), (Pieces{"a", "1 ", "b"}));
  EXPECT_EQ(pieces("\\w+|\\D", "a_1\u0301 -2"), (Pieces{"a_1\u0301", " ", "-", "2"}));
  EXPECT_EQ(pieces("\\d{1,3}(?=(?:\\d{3})*$)", "1234567"), (Pieces{"1", "234", "567"}));
}

TEST(SplitRegex, SmallAndCapitalLettersAsInUnicode) {
  EXPECT_EQ(pieces("(?i:'s|k)", "'\u017fx\u212a'S"), (Pieces{"'\u017f", "x", "\u212a", "'S"}));
}

// Each match looks through what is left of its run twice over, and then takes one character: every one is cheap enough
// for PCRE2, all of them together are not.
TEST(SplitRegex, ManyDearMatchesAreAnError) {
  const char* dear = "a+a+[bc]|a";
  EXPECT_EQ(pieces(dear, std::string(40, 'a')).size(), 40u);
  std::string run(2001, 'a'), text;
  run.back() = 'd';
  for (int i = 0; i < 100; ++i) text += run;
  expect_error<ResourceError>([&] { pieces(dear, text); }, {"searches a text for too long"});
  SearchBudget shared(100);
  std::vector<Span> matches;
  const SplitRegex regex(dear);
  expect_error<ResourceError>(
      [&] {
        for (int i = 0; i < 1000; ++i) regex.find(run, matches, shared);
      },
      {"too long"});
}

TEST(SplitRegex, Errors) {
  expect_error<FormatError>([] { SplitRegex regex("(a"); }, {"malformed regular expression", "(a"});
  for (const char* other :
       {"[^\\S]", "[\\P{L}]", "\\pL", "\\p{Greek}", "\\p{C}", "\\p{}",   "\\p",    "\\h",     "\\b",     "\\Ra",
        "[a[b]]", "[a&&b]",   "[]a]", "(?m:a)",     "(?im)a", "(?<x>a)", "(?#x)a", "(*UCP)a", "a{1,2}+", "\\1a"})
    expect_error<FormatError>([&] { SplitRegex regex(other); }, {"unsupported part of a regular expression", other});
  for (const char* empty : {"x*", "a?", "|b", "^", "(?=a)"})
    expect_error<FormatError>([&] { SplitRegex regex(empty); }, {"can match nothing", empty});
}

}  // namespace
}  // namespace lockstep::text
