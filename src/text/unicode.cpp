#include "text/unicode.h"

#include <algorithm>
#include <tuple>

namespace lockstep::text::unicode {

namespace {

// Hangul syllables are composed by arithmetic (Unicode, 3.12).
constexpr uint32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr uint32_t kNumLeading = 19, kNumVowels = 21, kNumTrailing = 28;

template <typename RangeType>
const RangeType* find_range(std::span<const RangeType> sorted, uint32_t code) {
  const auto after = std::upper_bound(sorted.begin(), sorted.end(), code,
                                      [](uint32_t value, const RangeType& range) { return value < range.first; });
  if (after == sorted.begin() || code > (after - 1)->last) return nullptr;
  return &*(after - 1);
}

Bits category_bits(Category category) {
  using enum Category;
  switch (category) {
    case Lu:
    case Lt: return kLetterBit | kUpperBit;
    case Ll: return kLetterBit | kLowerBit;
    case Lm:
    case Lo: return kLetterBit | kUpperBit | kLowerBit;
    case Mn:
    case Mc:
    case Me: return kUpperBit | kLowerBit;
    case Nd:
    case Nl:
    case No: return kNumberBit;
    default: return 0;
  }
}

std::vector<Bits> make_bit_table() {
  std::vector<Bits> table(0x110000);
  const auto mark = [&](uint32_t first, uint32_t last, Bits bits) {
    for (uint32_t code = first; code <= last; ++code) table[code] |= bits;
  };
  for (const CategoryRange& range : kCategories) mark(range.first, range.last, category_bits(range.category));
  for (const Range& range : kWhiteSpace) mark(range.first, range.last, kSpaceBit);
  for (const Range& range : kUnsafeForNfc) mark(range.first, range.last, kUnsafeForNfcBit);
  table['\r'] |= kNewlineBit;
  table['\n'] |= kNewlineBit;
  return table;
}

}  // namespace

bool contains(std::span<const Range> sorted, uint32_t code) {
  return find_range(sorted, code) != nullptr;
}

std::optional<std::span<const uint32_t>> mapped(std::span<const Mapping> rows, std::span<const uint32_t> pool,
                                                uint32_t code) {
  const auto row = std::ranges::lower_bound(rows, code, {}, &Mapping::code);
  if (row == rows.end() || row->code != code) return std::nullopt;
  return pool.subspan(row->begin, row->length);
}

uint8_t combining_class(uint32_t code) {
  const ClassRange* range = find_range(kCombining, code);
  return range == nullptr ? 0 : range->combining_class;
}

std::optional<uint32_t> compose(uint32_t first, uint32_t second) {
  if (first - kLeading < kNumLeading && second - kVowels < kNumVowels)
    return kSyllables + ((first - kLeading) * kNumVowels + second - kVowels) * kNumTrailing;
  if (first - kSyllables < kNumLeading * kNumVowels * kNumTrailing && (first - kSyllables) % kNumTrailing == 0 &&
      second - kTrailing - 1 < kNumTrailing - 1)
    return first + second - kTrailing;
  const auto key = [](const Composition& row) { return std::tuple(row.first, row.second); };
  const auto row = std::ranges::lower_bound(kCompositions, std::tuple(first, second), {}, key);
  if (row == kCompositions.end() || key(*row) != std::tuple(first, second)) return std::nullopt;
  return row->composed;
}

const Bits* bit_table() {
  static const std::vector<Bits> table = make_bit_table();
  return table.data();
}

}  // namespace lockstep::text::unicode
