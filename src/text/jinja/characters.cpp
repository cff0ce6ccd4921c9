#include "text/jinja/characters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "core/utf8.h"
#include "text/jinja/python_tables.h"

namespace lockstep::text::jinja {

namespace {

template <class Row>
const Row* find_run(std::span<const Row> rows, uint32_t code) {
  const auto row = std::ranges::lower_bound(rows, code, {}, &Row::last);
  if (row == rows.end() || code < row->first || (code - row->first) % row->step != 0) return nullptr;
  return &*row;
}

std::span<const tables::Run> runs_of(CharClass which) {
  switch (which) {
    case CharClass::printable: return tables::kPrintable;
    case CharClass::alpha: return tables::kAlpha;
    case CharClass::decimal: return tables::kDecimal;
    case CharClass::digit: return tables::kDigit;
    case CharClass::numeric: return tables::kNumeric;
    case CharClass::lower: return tables::kLower;
    case CharClass::upper: return tables::kUpper;
    case CharClass::title: return tables::kTitle;
    case CharClass::mark: return tables::kMark;
  }
  return {};
}

struct CaseTable {
  std::span<const tables::Mapping> one;
  std::span<const tables::Expansion> several;
};
constexpr CaseTable kUpperTable = {tables::kToUpper, tables::kToUpperSeveral};
constexpr CaseTable kLowerTable = {tables::kToLower, tables::kToLowerSeveral};
constexpr CaseTable kTitleTable = {tables::kToTitle, tables::kToTitleSeveral};

void append_mapped(std::string& out, const CaseTable& table, uint32_t code) {
  if (const tables::Mapping* found = find_run(table.one, code))
    return append_utf8(out, static_cast<uint32_t>(static_cast<int32_t>(code) + found->delta));
  const auto several = std::ranges::lower_bound(table.several, code, {}, &tables::Expansion::code);
  if (several == table.several.end() || several->code != code) return append_utf8(out, code);
  for (const uint32_t to : several->to)
    if (to != 0) append_utf8(out, to);
}

bool is_cased(uint32_t code) {
  return is(CharClass::lower, code) || is(CharClass::upper, code) || is(CharClass::title, code);
}

// Characters that Unicode (3.13) looks through when it asks what stands beside a sigma.
bool is_case_ignorable(uint32_t code) {
  return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x2019 || is(CharClass::mark, code);
}

constexpr uint32_t kSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

uint32_t lower_sigma(std::u32string_view codes, size_t place) {
  size_t before = place;
  while (before > 0 && is_case_ignorable(codes[before - 1])) --before;
  if (before == 0 || !is_cased(codes[before - 1])) return kSmallSigma;
  size_t after = place + 1;
  while (after < codes.size() && is_case_ignorable(codes[after])) ++after;
  return after < codes.size() && is_cased(codes[after]) ? kSmallSigma : kFinalSigma;
}

void append_lower(std::string& out, std::u32string_view codes, size_t place) {
  if (codes[place] == kSigma) return append_utf8(out, lower_sigma(codes, place));
  append_mapped(out, kLowerTable, codes[place]);
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

bool is(CharClass which, uint32_t code) {
  return find_run(runs_of(which), code) != nullptr;
}

bool is_space(uint32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

bool is_line_break(uint32_t code) {
  return (code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

std::u32string to_codes(std::string_view utf8) {
  std::u32string codes;
  codes.reserve(utf8.size());
  while (!utf8.empty()) {
    const Utf8Char next = read_utf8(utf8);
    codes.push_back(next.valid ? next.code : 0xFFFD);
    utf8.remove_prefix(next.size);
  }
  return codes;
}

std::string to_utf8(std::u32string_view codes) {
  std::string out;
  out.reserve(codes.size());
  for (const char32_t code : codes) append_utf8(out, code);
  return out;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string upper(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  if (is_ascii(utf8)) {
    for (const char c : utf8) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    return out;
  }
  for (const char32_t code : to_codes(utf8)) append_mapped(out, kUpperTable, code);
  return out;
}

std::string lower(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  if (is_ascii(utf8)) {
    for (const char c : utf8) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return out;
  }
  const std::u32string codes = to_codes(utf8);
  for (size_t i = 0; i < codes.size(); ++i) append_lower(out, codes, i);
  return out;
}

std::string title(std::string_view utf8) {
  std::string out;
  const std::u32string codes = to_codes(utf8);
  bool inside = false;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (inside)
      append_lower(out, codes, i);
    else
      append_mapped(out, kTitleTable, codes[i]);
    inside = is_cased(codes[i]);
  }
  return out;
}

std::string capitalize(std::string_view utf8) {
  std::string out;
  const std::u32string codes = to_codes(utf8);
  for (size_t i = 0; i < codes.size(); ++i)
    if (i == 0)
      append_mapped(out, kTitleTable, codes[i]);
    else
      append_lower(out, codes, i);
  return out;
}

std::string swapcase(std::string_view utf8) {
  std::string out;
  const std::u32string codes = to_codes(utf8);
  for (size_t i = 0; i < codes.size(); ++i)
    if (is(CharClass::upper, codes[i]))
      append_lower(out, codes, i);
    else if (is(CharClass::lower, codes[i]))
      append_mapped(out, kUpperTable, codes[i]);
    else
      append_utf8(out, codes[i]);
  return out;
}

Utf8Char last_character(std::string_view utf8) {
  size_t begin = utf8.size() - 1;
  while (begin > 0 && utf8.size() - begin < 4 && (utf8[begin] & 0xC0) == 0x80) --begin;
  return read_utf8(utf8.substr(begin));
}

namespace {

// looked_at(bytes) hears of every character as it goes.
template <class Member, class LookedAt>
std::string_view strip_if(std::string_view utf8, bool left, bool right, const Member& member,
                          const LookedAt& looked_at) {
  while (left && !utf8.empty()) {
    const Utf8Char first = read_utf8(utf8);
    if (!member(first.code)) break;
    utf8.remove_prefix(first.size);
    looked_at(first.size);
  }
  while (right && !utf8.empty()) {
    const Utf8Char last = last_character(utf8);
    if (!member(last.code)) break;
    utf8.remove_suffix(last.size);
    looked_at(last.size);
  }
  return utf8;
}

std::u32string sorted_codes(std::string_view characters) {
  std::u32string codes = to_codes(characters);
  std::ranges::sort(codes);
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  return codes;
}

}  // namespace

std::string_view strip_spaces(std::string_view utf8, bool left, bool right) {
  return strip_if(utf8, left, right, is_space, [](size_t) {});
}

std::string_view strip(std::string_view utf8, std::optional<std::string_view> characters, bool left, bool right,
                       const std::function<void(size_t)>& looked_at) {
  constexpr size_t kPiece = 4096;
  size_t bytes = 0;
  const auto count = [&](size_t more) {
    if ((bytes += more) >= kPiece) looked_at(std::exchange(bytes, 0));
  };
  const std::u32string members = sorted_codes(characters.value_or(""));
  const std::string_view rest =
      characters
          ? strip_if(
                utf8, left, right, [&](uint32_t code) { return std::ranges::binary_search(members, code); }, count)
          : strip_if(utf8, left, right, is_space, count);
  looked_at(bytes);
  return rest;
}

std::string repr(std::string_view utf8) {
  const char quote = utf8.find('\'') != std::string_view::npos && utf8.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  const auto escape = [&](char kind, int digits, uint32_t code) {
    out += '\\';
    out += kind;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[code >> shift & 15];
  };
  for (const char32_t code : to_codes(utf8)) {
    if (code == static_cast<unsigned char>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code >= 0x20 && (code < 0x7F || is(CharClass::printable, code))) {
      append_utf8(out, code);
    } else if (code < 0x100) {
      escape('x', 2, code);
    } else if (code < 0x10000) {
      escape('u', 4, code);
    } else {
      escape('U', 8, code);
    }
  }
  return out + quote;
}

std::string repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t digits_of_exponent = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + digits_of_exponent, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);  // both write at least two digits of exponent
  const bool negative = text[0] == '-';
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out = negative ? "-" : "";
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string text_of(Int value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  std::string out;
  for (; value != 0; value /= 10) out += static_cast<char>('0' + static_cast<int>(value % 10) * (negative ? -1 : 1));
  if (negative) out += '-';
  std::ranges::reverse(out);
  return out;
}

}  // namespace lockstep::text::jinja
