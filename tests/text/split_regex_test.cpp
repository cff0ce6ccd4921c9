#include "text/split_regex.h"

#include <vector>

#include "core/error.h"
#include "support/temp_directory.h"
#include "text/unicode.h"

namespace lockstep::text {
namespace {

using lockstep::testing::expect_error;

std::vector<std::string> pieces(const char* pattern, std::string_view text) {
  std::vector<std::string> list;
  SplitRegex(pattern).split(text, [&](std::string_view piece) { list.emplace_back(piece); });
  return list;
}

using Pieces = std::vector<std::string>;

TEST(SplitRegex, MatchesAndWhatLiesBetween) {
  EXPECT_EQ(pieces("b+", "abbcb"), (Pieces{"a", "bb", "c", "b"}));
  EXPECT_EQ(pieces("x", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(pieces("x*", "axb"), (Pieces{"a", "x", "b"}));  // empty matches cut nothing
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

TEST(SplitRegex, Errors) {
  expect_error<FormatError>([] { SplitRegex regex("(a"); }, {"malformed regular expression", "(a"});
  for (const char* other : {"\\p{M}+", "\\P{L}", "[^\\S]", "\\w", "\\d", "\\pL", "\\p{Lu}"})
    expect_error<FormatError>([&] { SplitRegex regex(other); }, {"unsupported character class", other});
}

TEST(UnicodeTables, SortedDisjointAndKnown) {
  const auto sorted = [](std::span<const unicode::Range> ranges) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].first > ranges[i].last || ranges[i].last > 0x10FFFF) return false;
      if (i > 0 && ranges[i - 1].last + 1 >= ranges[i].first) return false;
    }
    return !ranges.empty();
  };
  EXPECT_TRUE(sorted(unicode::kLetter));
  EXPECT_TRUE(sorted(unicode::kNumber));
  EXPECT_TRUE(sorted(unicode::kWhiteSpace));
  EXPECT_TRUE(sorted(unicode::kNumeric));
  EXPECT_TRUE(sorted(unicode::kWord));
  EXPECT_TRUE(unicode::is_word('_') && unicode::is_word(0x301) && unicode::is_word(0x203F) && !unicode::is_word('-'));
  EXPECT_TRUE(unicode::is_numeric('0') && unicode::is_numeric(0x2167) && unicode::is_numeric(0xBD) &&
              !unicode::is_numeric('a'));
  EXPECT_TRUE(unicode::is_white_space(0x85) && unicode::is_white_space(0x3000) && !unicode::is_white_space(0x200B));
  EXPECT_FALSE(unicode::contains(unicode::kLetter, 0));
  EXPECT_FALSE(unicode::contains(unicode::kLetter, 0x10FFFF));
}

}  // namespace
}  // namespace lockstep::text
