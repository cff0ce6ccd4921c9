#include "text/jinja/literals.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "core/utf8.h"
#include "text/jinja/runtime.h"

namespace lockstep::text::jinja {

namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// End of digits (of `base`), single underscores between them, from `begin`; `begin` if there is none.
size_t end_of_digits(std::string_view text, size_t begin, int base = 10) {
  size_t end = begin;
  for (size_t i = begin; i < text.size(); ++i) {
    if (digit_of(text[i]) < base)
      end = i + 1;
    else if (text[i] != '_' || i != end || end == begin)
      break;
  }
  return end;
}

NumberLiteral integer(std::string_view text, size_t prefix, int base) {
  NumberLiteral literal{.text = text, .value = {}};
  Int value = 0;
  for (const char c : text.substr(prefix)) {
    if (c == '_') continue;
    if (value > kLargestInt / base - base) literal.too_large = true;
    value = literal.too_large ? 0 : value * base + digit_of(c);
  }
  literal.value = Value(value);
  return literal;
}

// End of a float at the beginning of `text`; 0 if there is none.
size_t end_of_float(std::string_view text) {
  const size_t whole = end_of_digits(text, 0);
  size_t fraction = whole;
  if (whole < text.size() && text[whole] == '.') {
    fraction = end_of_digits(text, whole + 1);
    if (fraction == whole + 1) fraction = whole;
  }
  size_t exponent = fraction;
  if (fraction < text.size() && (text[fraction] == 'e' || text[fraction] == 'E')) {
    size_t digits = fraction + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    if (const size_t end = end_of_digits(text, digits); end > digits) exponent = end;
  }
  return exponent > whole ? exponent : 0;
}

NumberLiteral real(std::string_view text) {
  std::string digits;
  for (const char c : text)
    if (c != '_') digits += c;
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  NumberLiteral literal{.text = text, .value = Value(value)};
  if (result.ec == std::errc::result_out_of_range) {
    // Below the smallest number Python reads 0; above the largest, infinity, which templates have no name for.
    const size_t e = digits.find_first_of("eE");
    literal.too_large = e == std::string::npos || digits[e + 1] != '-';
    literal.value = Value(0.0);
  }
  return literal;
}

}  // namespace

NumberLiteral read_number(std::string_view text, bool behind_dot) {
  if (const size_t end = behind_dot ? 0 : end_of_float(text)) return real(text.substr(0, end));
  if (text[0] == '0' && text.size() > 2) {
    const char kind = static_cast<char>(text[1] | 32);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    const size_t first = text[2] == '_' ? 3 : 2;
    if (base != 0)
      if (const size_t end = end_of_digits(text, first, base); end > first)
        return integer(text.substr(0, end), 2, base);
  }
  if (text[0] != '0') return integer(text.substr(0, end_of_digits(text, 0)), 0, 10);
  size_t zeros = end_of_digits(text, 0, 1);  // a number that begins with 0 is zeros only
  return integer(text.substr(0, zeros), 0, 10);
}

namespace {

constexpr std::string_view kEscapes = "n\nr\rt\ta\ab\bf\fv\v\\\\''\"\"";

// \xhh, \uhhhh, \Uhhhhhhhh: the digits behind the letter.
bool append_code(std::string& out, std::string_view digits, size_t size) {
  if (digits.size() < size || end_of_digits(digits.substr(0, size), 0, 16) != size) return false;
  if (digits.substr(0, size).find('_') != std::string_view::npos) return false;
  uint32_t code = 0;
  for (const char c : digits.substr(0, size)) code = code * 16 + static_cast<uint32_t>(digit_of(c));
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
  append_utf8(out, code);
  return true;
}

}  // namespace

std::string unescaped(std::string_view literal, std::string& bad) {
  std::string out;
  out.reserve(literal.size());
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\') {
      out += literal[i];
      continue;
    }
    const char kind = literal[++i];
    const size_t known = kEscapes.find(kind);
    if (kind == '\n') continue;
    if (kind == 'x' || kind == 'u' || kind == 'U') {
      const size_t size = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
      if (!append_code(out, literal.substr(i + 1), size)) bad = literal.substr(i - 1, size + 2);
      i += std::min(size, literal.size() - i - 1);
    } else if (kind == 'N') {
      bad = "\\N";
    } else if (kind >= '0' && kind <= '7') {
      uint32_t code = 0;
      size_t digits = 0;
      for (; digits < 3 && i < literal.size() && literal[i] >= '0' && literal[i] <= '7'; ++i, ++digits)
        code = code * 8 + static_cast<uint32_t>(literal[i] - '0');
      --i;
      append_utf8(out, code);
    } else if (known != std::string_view::npos && known % 2 == 0) {
      out += kEscapes[known + 1];
    } else if (static_cast<unsigned char>(kind) < 0x80) {
      out += '\\';
      out += kind;
    } else {
      // Python writes the character as an escape first, and the backslash takes that one's.
      const Utf8Char code = read_utf8(literal.substr(i));
      char digits[12];
      const int width = code.code < 0x100 ? 2 : code.code < 0x10000 ? 4 : 8;
      std::snprintf(digits, sizeof digits, "%c%0*x", width == 2 ? 'x' : width == 4 ? 'u' : 'U', width, code.code);
      out += '\\';
      out += digits;
      i += code.size - 1u;
    }
  }
  return out;
}

}  // namespace lockstep::text::jinja
