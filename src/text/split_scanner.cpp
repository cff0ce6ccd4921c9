#include "text/split_scanner.h"

#include "core/utf8.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

using unicode::Bits;
using unicode::kLetterBit;
using unicode::kLowerBit;
using unicode::kNewlineBit;
using unicode::kNumberBit;
using unicode::kSpaceBit;
using unicode::kUpperBit;

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneDigit =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kThreeDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What the alternatives share. A place is an offset in the text; no place is kNone.
class Scan {
 public:
  explicit Scan(std::string_view text) : data_(text.data()), size_(text.size()), table_(unicode::bit_table()) {}

  size_t size() const { return size_; }
  char byte(size_t place) const { return data_[place]; }

  // Classes of the character at `place` and where the next one begins; no classes at the end of the text.
  struct Here {
    Bits bits;
    size_t next;
  };
  Here at(size_t place) const {
    if (place >= size_) return {0, size_};
    size_t size = 0;
    const uint32_t code = code_at(data_, place, size);
    return {table_[code], place + size};
  }

  // Behind the characters from `place` on that have one of `bits`.
  size_t run(size_t place, Bits bits) const {
    while (place < size_) {
      const Here here = at(place);
      if ((here.bits & bits) == 0) break;
      place = here.next;
    }
    return place;
  }
  // Behind those that have none of them.
  size_t run_without(size_t place, Bits bits) const {
    while (place < size_) {
      const Here here = at(place);
      if ((here.bits & bits) != 0) break;
      place = here.next;
    }
    return place;
  }

  // Behind 's 't 're 've 'm 'll 'd at `place`; `place` where there is none. Without case U+017F is an s too.
  size_t contraction(size_t place, bool any_case) const {
    if (place + 1 >= size_ || data_[place] != '\'') return place;
    const auto letter = [&](size_t i) {
      const char c = i < size_ ? data_[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char first = letter(place + 1), second = letter(place + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return place + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
      return place + 3;
    if (any_case && first == '\xC5' && second == '\xBF') return place + 3;
    return place;
  }

  // " ?[^\s\p{L}\p{N}]+" at `place`; `place` where there is none.
  size_t symbols(size_t place) const {
    constexpr Bits kOthers = kSpaceBit | kLetterBit | kNumberBit;
    const size_t begin = place + (data_[place] == ' ' ? 1 : 0);
    const size_t end = run_without(begin, kOthers);
    return end == begin ? place : end;
  }

  // "\s*[\r\n]+|\s+(?!\S)|\s+" at a white-space character; the first alternative only if `newlines`.
  size_t spaces(size_t place, bool newlines) const {
    size_t end = place, last = place, behind_newline = place;
    while (end < size_) {
      const Here here = at(end);
      if ((here.bits & kSpaceBit) == 0) break;
      last = end;
      end = here.next;
      if ((here.bits & kNewlineBit) != 0) behind_newline = end;
    }
    if (newlines && behind_newline > place) return behind_newline;
    // One is left for the word that follows, unless it is the only one.
    return end == size_ || last == place ? end : last;
  }

 private:
  const char* data_;
  size_t size_;
  const Bits* table_;
};

size_t next_gpt2(const Scan& scan, size_t place) {
  if (const size_t end = scan.contraction(place, false); end > place) return end;
  const size_t begin = place + (scan.byte(place) == ' ' ? 1 : 0);
  const Scan::Here first = scan.at(begin);
  if ((first.bits & kLetterBit) != 0) return scan.run(first.next, kLetterBit);
  if ((first.bits & kNumberBit) != 0) return scan.run(first.next, kNumberBit);
  if (const size_t end = scan.symbols(place); end > place) return end;
  return scan.spaces(place, false);
}

size_t digits(const Scan& scan, size_t place, int most) {
  for (int i = 0; i < most; ++i) {
    const Scan::Here here = scan.at(place);
    if ((here.bits & kNumberBit) == 0) break;
    place = here.next;
  }
  return place;
}

size_t next_cl100k(const Scan& scan, size_t place, int max_digits) {
  if (const size_t end = scan.contraction(place, true); end > place) return end;
  const Scan::Here first = scan.at(place);
  if ((first.bits & kLetterBit) != 0) return scan.run(first.next, kLetterBit);
  if ((first.bits & kNumberBit) != 0) return digits(scan, place, max_digits);
  if ((first.bits & kNewlineBit) == 0) {
    const Scan::Here second = scan.at(first.next);
    if ((second.bits & kLetterBit) != 0) return scan.run(second.next, kLetterBit);
  }
  if (const size_t end = scan.symbols(place); end > place) return scan.run(end, kNewlineBit);
  return scan.spaces(place, true);
}

// [upper]*[lower]+ at `place`; `place` where it does not match. Some letters (Lm, Lo, M) are of both classes, so the
// greedy first part gives back as far as the last of these when nothing of the second follows it.
size_t lower_word(const Scan& scan, size_t place) {
  size_t end = place, behind_lower = place;
  Scan::Here here{};
  for (; (here = scan.at(end)).bits & kUpperBit; end = here.next)
    if ((here.bits & kLowerBit) != 0) behind_lower = here.next;
  return (here.bits & kLowerBit) != 0 ? scan.run(here.next, kLowerBit) : behind_lower;
}

// [upper]+[lower]* at `place`.
size_t upper_word(const Scan& scan, size_t place) {
  const size_t end = scan.run(place, kUpperBit);
  return end == place ? place : scan.run(end, kLowerBit);
}

size_t next_o200k(const Scan& scan, size_t place) {
  constexpr int kMaxDigits = 3;
  const Scan::Here first = scan.at(place);
  if ((first.bits & kNumberBit) != 0) return digits(scan, place, kMaxDigits);
  // [^\r\n\p{L}\p{N}]? before a word, tried with the character before it is tried without.
  const bool prefix = (first.bits & (kNewlineBit | kLetterBit)) == 0;
  for (const auto word : {lower_word, upper_word}) {
    const size_t behind = prefix ? word(scan, first.next) : first.next;
    if (behind > first.next) return scan.contraction(behind, true);
    if (const size_t end = word(scan, place); end > place) return scan.contraction(end, true);
  }
  if (size_t end = scan.symbols(place); end > place) {
    while (end < scan.size() && (scan.byte(end) == '\r' || scan.byte(end) == '\n' || scan.byte(end) == '/')) ++end;
    return end;
  }
  return scan.spaces(place, true);
}

template <typename Next>
void find_all(std::string_view text, std::vector<Span>& matches, const Next& next) {
  const Scan scan(text);
  for (size_t place = 0; place < text.size();) {
    const size_t end = next(scan, place);
    matches.push_back({place, end});
    place = end;
  }
}

}  // namespace

std::optional<SplitScanner> SplitScanner::recognise(std::string_view pattern) {
  if (pattern == kGpt2) return SplitScanner(Kind::gpt2);
  if (pattern == kOneDigit) return SplitScanner(Kind::one_digit);
  if (pattern == kThreeDigits) return SplitScanner(Kind::three_digits);
  if (pattern == kO200k) return SplitScanner(Kind::o200k);
  return std::nullopt;
}

void SplitScanner::find(std::string_view text, std::vector<Span>& matches) const {
  switch (kind_) {
    case Kind::gpt2: return find_all(text, matches, next_gpt2);
    case Kind::one_digit: return find_all(text, matches, [](const Scan& s, size_t p) { return next_cl100k(s, p, 1); });
    case Kind::three_digits:
      return find_all(text, matches, [](const Scan& s, size_t p) { return next_cl100k(s, p, 3); });
    case Kind::o200k: return find_all(text, matches, next_o200k);
  }
}

}  // namespace lockstep::text
