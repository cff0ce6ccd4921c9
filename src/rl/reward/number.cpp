#include "rl/reward/number.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "rl/reward/extract.h"

namespace lockstep::rl {

namespace {

bool is_decimal_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string clean(std::string_view text) {
  std::string kept;
  for (const char c : text)
    if (c != '$' && std::isspace(static_cast<unsigned char>(c)) == 0) kept += c;
  return kept;
}

// digits with commas between, one point, an optional sign; "3-4" holds 3 and 4, not -4.
std::optional<std::string_view> last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_decimal_digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  size_t begin = end;
  bool point = false;
  while (begin > 0) {
    const char c = text[begin - 1];
    const bool inner = begin > 1 && is_decimal_digit(text[begin - 2]);
    if (is_decimal_digit(c) || (c == ',' && inner))
      --begin;
    else if (c == '.' && !point && is_decimal_digit(text[begin]))
      point = true, --begin;
    else
      break;
  }
  if (begin > 0 && text[begin - 1] == '-' && (begin == 1 || !std::isalnum(static_cast<unsigned char>(text[begin - 2]))))
    --begin;
  return text.substr(begin, end - begin);
}

// digits * 10^exponent, no 0 at either end; zero has no digits, no sign and exponent 0.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
  bool operator==(const Decimal&) const = default;
};

// nullopt: the text is no decimal, or its exponent has more digits than a 32-bit number.
std::optional<Decimal> decimal(const std::string& text) {
  Decimal value;
  size_t i = 0;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) value.negative = text[i++] == '-';
  bool point = false;
  for (; i < text.size() && (is_decimal_digit(text[i]) || text[i] == ',' || (text[i] == '.' && !point)); ++i) {
    if (is_decimal_digit(text[i])) {
      value.digits += text[i];
      value.exponent -= point ? 1 : 0;
    }
    point = point || text[i] == '.';
  }
  if (value.digits.empty()) return std::nullopt;
  if (i < text.size()) {
    if (text[i] != 'e' && text[i] != 'E') return std::nullopt;
    if (++i < text.size() && text[i] == '+' && i + 1 < text.size() && is_decimal_digit(text[i + 1])) ++i;
    int32_t power = 0;
    const auto read = std::from_chars(text.data() + i, text.data() + text.size(), power);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
    value.exponent += power;
  }
  value.digits.erase(0, std::min(value.digits.find_first_not_of('0'), value.digits.size()));
  const size_t kept = value.digits.find_last_not_of('0') + 1;
  value.exponent += static_cast<int64_t>(value.digits.size() - kept);
  value.digits.resize(kept);
  return value.digits.empty() ? Decimal() : value;
}

}  // namespace

std::optional<std::string> number_answer(std::string_view response) {
  constexpr std::string_view kOpen = "\\boxed{";
  const size_t at = response.rfind(kOpen);
  if (at != std::string_view::npos)
    if (const auto boxed = braced(response, at + kOpen.size() - 1)) return clean(*boxed);
  if (const auto marked = marked_answer(response)) {
    const std::string answer = clean(*marked);
    return answer.empty() ? std::nullopt : std::optional(answer);
  }
  if (const auto number = last_number(response)) return clean(*number);
  return std::nullopt;
}

bool same_number(const std::string& a, const std::string& b) {
  const auto x = decimal(a), y = decimal(b);
  return x && y ? *x == *y : a == b;
}

std::optional<float> grade_number(std::string_view response, std::string_view label) {
  const auto wanted = label_answer(label);
  if (!wanted) return std::nullopt;
  const auto got = number_answer(response);
  return got && same_number(*got, clean(*wanted)) ? 1.0f : 0.0f;
}

}  // namespace lockstep::rl
