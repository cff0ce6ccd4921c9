// What Hugging Face `tokenizers` knows of Unicode: classes of characters, small letters, decompositions. The tables are
// made by tools/unicode/make_tables.py from the library itself (unicode_classes.cpp, unicode_mappings.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::text::unicode {

// General categories as in Unicode; Cn (not assigned) is the absence of all.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Co,  // clang-format off
};  // clang-format on

struct Range {
  uint32_t first, last;
};
struct CategoryRange {
  uint32_t first, last;
  Category category;
};
struct ClassRange {
  uint32_t first, last;
  uint8_t combining_class;
};
struct Composition {
  uint32_t first, second, composed;
};
// Row of a mapping: the text of `code` is `length` code points of the pool from `begin`.
struct Mapping {
  uint32_t code;
  uint16_t begin;
  uint8_t length;
};

// Sorted, disjoint.
extern const std::span<const CategoryRange> kCategories;  // \p{..} of a Split expression
extern const std::span<const Range> kWhiteSpace;          // \s of it; char::is_whitespace
extern const std::span<const Range> kWordRegex;           // \w of it
extern const std::span<const Range> kWord;                // word characters of single_word
extern const std::span<const Range> kNumeric;             // char::is_numeric
extern const std::span<const Range> kUnsafeForNfc;        // what NFC may change, alone or behind another character
extern const std::span<const ClassRange> kCombining;      // combining classes that are not 0
extern const std::span<const Composition> kCompositions;  // without Hangul
// Full decompositions without Hangul; of kCompatible only where it differs from kCanonical.
extern const std::span<const Mapping> kCanonical, kCompatible, kLowercase;
extern const std::span<const uint32_t> kCanonicalText, kCompatibleText, kLowercaseText;

bool contains(std::span<const Range> sorted, uint32_t code);

inline bool is_white_space(uint32_t code) {
  return contains(kWhiteSpace, code);
}
inline bool is_numeric(uint32_t code) {
  return contains(kNumeric, code);
}
inline bool is_word(uint32_t code) {
  return contains(kWord, code);
}

// The row's text; nothing when `code` has none.
std::optional<std::span<const uint32_t>> mapped(std::span<const Mapping> rows, std::span<const uint32_t> pool,
                                                uint32_t code);
uint8_t combining_class(uint32_t code);
// The character that the pair composes to, Hangul too.
std::optional<uint32_t> compose(uint32_t first, uint32_t second);

// Classes that splitting text asks for at every character, one bit each.
using Bits = uint8_t;
inline constexpr Bits kLetterBit = 1, kNumberBit = 2, kSpaceBit = 4;
inline constexpr Bits kUpperBit = 8;   // Lu Lt Lm Lo M
inline constexpr Bits kLowerBit = 16;  // Ll Lm Lo M
inline constexpr Bits kUnsafeForNfcBit = 32;
inline constexpr Bits kNewlineBit = 64;  // \r \n

// Bits of every code point, looked up without a search. Made on first use, then constant.
const Bits* bit_table();

}  // namespace lockstep::text::unicode
