#include "text/unicode.h"

#include <gtest/gtest.h>

namespace lockstep::text {
namespace {

template <typename RangeType>
bool sorted(std::span<const RangeType> ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].first > ranges[i].last || ranges[i].last > 0x10FFFF) return false;
    if (i > 0 && ranges[i - 1].last >= ranges[i].first) return false;
  }
  return !ranges.empty();
}

TEST(UnicodeTables, SortedDisjointAndKnown) {
  EXPECT_TRUE(sorted(unicode::kCategories));
  EXPECT_TRUE(sorted(unicode::kWhiteSpace));
  EXPECT_TRUE(sorted(unicode::kNumeric));
  EXPECT_TRUE(sorted(unicode::kWord));
  EXPECT_TRUE(sorted(unicode::kWordRegex));
  EXPECT_TRUE(sorted(unicode::kCombining));
  EXPECT_TRUE(sorted(unicode::kUnsafeForNfc));
  EXPECT_TRUE(unicode::is_word('_') && unicode::is_word(0x301) && unicode::is_word(0x203F) && !unicode::is_word('-'));
  EXPECT_TRUE(unicode::is_numeric('0') && unicode::is_numeric(0x2167) && unicode::is_numeric(0xBD) &&
              !unicode::is_numeric('a'));
  EXPECT_TRUE(unicode::is_white_space(0x85) && unicode::is_white_space(0x3000) && !unicode::is_white_space(0x200B));
  EXPECT_FALSE(unicode::contains(unicode::kWord, 0));
  EXPECT_FALSE(unicode::contains(unicode::kWord, 0x10FFFF));
}

TEST(UnicodeTables, BitsAreThoseOfTheCategories) {
  using namespace unicode;
  const Bits* bits = bit_table();
  EXPECT_EQ(bits['A'], kLetterBit | kUpperBit);
  EXPECT_EQ(bits['a'], kLetterBit | kLowerBit);
  EXPECT_EQ(bits[0x1C5], kLetterBit | kUpperBit);                // Lt
  EXPECT_EQ(bits[0x4E2D], kLetterBit | kUpperBit | kLowerBit);   // Lo
  EXPECT_EQ(bits[0x105C0], kLetterBit | kUpperBit | kLowerBit);  // of Unicode 16
  EXPECT_EQ(bits[0x301], kUpperBit | kLowerBit | kUnsafeForNfcBit);
  EXPECT_EQ(bits['7'], kNumberBit);
  EXPECT_EQ(bits[0xBD], kNumberBit);
  EXPECT_EQ(bits['\n'], kSpaceBit | kNewlineBit);
  EXPECT_EQ(bits[0x3000], kSpaceBit);
  EXPECT_EQ(bits['-'], 0);
  EXPECT_EQ(bits[0x10FFFF], 0);
}

TEST(UnicodeTables, Mappings) {
  using namespace unicode;
  const auto text = [](std::span<const Mapping> rows, std::span<const uint32_t> pool, uint32_t code) {
    const auto found = mapped(rows, pool, code);
    return found ? std::vector<uint32_t>(found->begin(), found->end()) : std::vector<uint32_t>();
  };
  EXPECT_EQ(text(kCanonical, kCanonicalText, 0x1EC7), (std::vector<uint32_t>{'e', 0x323, 0x302}));
  EXPECT_EQ(text(kCompatible, kCompatibleText, 0xFB03), (std::vector<uint32_t>{'f', 'f', 'i'}));
  EXPECT_EQ(text(kCompatible, kCompatibleText, 0xFDFA).size(), 18u);
  EXPECT_EQ(text(kLowercase, kLowercaseText, 0x130), (std::vector<uint32_t>{'i', 0x307}));
  EXPECT_TRUE(text(kCanonical, kCanonicalText, 'a').empty());
  EXPECT_EQ(combining_class(0x301), 230);
  EXPECT_EQ(combining_class(0x334), 1);
  EXPECT_EQ(combining_class('a'), 0);
  EXPECT_EQ(compose('e', 0x301), 0xE9u);
  EXPECT_EQ(compose(0x1100, 0x1161), 0xAC00u);
  EXPECT_EQ(compose(0xAC00, 0x11A8), 0xAC01u);
  EXPECT_EQ(compose(0xAC01, 0x11A8), std::nullopt);
  EXPECT_EQ(compose('a', 'b'), std::nullopt);
}

}  // namespace
}  // namespace lockstep::text
