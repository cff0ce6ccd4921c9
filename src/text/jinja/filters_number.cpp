// int, float, round, abs; and how Python reads numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

using Kind = Value::Kind;

namespace {

// Underscores between digits go; nothing for any other underscore.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  const auto digit = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return {};
      continue;
    }
    out += text[i];
  }
  return out;
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char letter = static_cast<char>(c | 32);
  return letter >= 'a' && letter <= 'z' ? letter - 'a' + 10 : 99;
}

}  // namespace

std::optional<Int> parse_integer(std::string_view text, int base) {
  text = strip_spaces(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char kind = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 32) : '\0';
  const int implied = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
  if (implied != 0 && (base == implied || base == 0)) {
    base = implied;
    text.remove_prefix(text[2] == '_' ? 3 : 2);
  }
  const auto digits = without_underscores(text);
  if (!digits || digits->empty()) return {};
  if (base == 0) {
    base = 10;
    if ((*digits)[0] == '0' && digits->find_first_not_of('0') != std::string::npos) return {};
  }
  Int value = 0;
  for (const char c : *digits) {
    if (digit_value(c) >= base) return {};
    if (value > kLargestInt / base - base) return {};
    value = value * base + digit_value(c);
  }
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string_view text) {
  text = strip_spaces(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string word(text);
  std::ranges::transform(word, word.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const double sign = negative ? -1 : 1;
  if (word == "inf" || word == "infinity") return sign * INFINITY;
  if (word == "nan") return NAN;
  const auto digits = without_underscores(text);
  if (!digits || digits->empty() || !(std::isdigit(static_cast<unsigned char>((*digits)[0])) || (*digits)[0] == '.'))
    return {};
  double value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (end != digits->data() + digits->size() || error == std::errc::invalid_argument) return {};
  if (error == std::errc::result_out_of_range)
    value = digits->find("e-") != std::string::npos || digits->find("E-") != std::string::npos ? 0.0 : INFINITY;
  return sign * value;
}

namespace {

// int(float); nothing for what has no integer.
std::optional<Int> whole(Runtime& runtime, double value) {
  if (!std::isfinite(value)) return {};
  if (std::fabs(value) > static_cast<double>(kLargestInt)) runtime.fail("an integer is too large");
  return static_cast<Int>(value);
}

std::optional<double> real_of(const Value& value) {
  if (value.is_number()) return value.real();
  return value.is_string() ? parse_real(value.text()) : std::nullopt;
}

}  // namespace

Value absolute(Runtime& runtime, const Value& value, Arguments& arguments) {
  bound(runtime, "abs", arguments, {});
  runtime.need_defined(value);
  if (value.is_integer()) return Value(value.integer() < 0 ? -value.integer() : value.integer());
  if (value.is(Kind::real)) return Value(std::fabs(value.real()));
  runtime.fail("bad operand type for abs(): '" + std::string(type_name(value)) + "'");
}

Value to_integer(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "int", arguments, {"default", "base"});
  const Int base = given[1].is_missing() ? 10 : need_integer(runtime, given[1]);
  runtime.need_defined(value);
  if (value.is_integer()) return Value(value.integer());
  if (value.is_string()) runtime.pass_slowly(8 * value.text().size());
  if (value.is_string() && (base == 0 || (base >= 2 && base <= 36)))
    if (const auto read = parse_integer(value.text(), static_cast<int>(base))) return Value(*read);
  if (const auto real = real_of(value))
    if (const auto cut = whole(runtime, *real)) return Value(*cut);
  if (value.is(Kind::real) && std::isinf(value.real())) runtime.fail("cannot convert float infinity to integer");
  return given[0].is_missing() ? Value(Int{0}) : given[0];
}

Value to_real(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "float", arguments, {"default"});
  runtime.need_defined(value);
  if (value.is_string()) runtime.pass_slowly(8 * value.text().size());
  if (const auto real = real_of(value)) return Value(*real);
  return given[0].is_missing() ? Value(0.0) : given[0];
}

namespace {

// round(value, digits) of a float: the decimal text that is nearest, read back.
double nearest_decimal(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 330) return value;
  if (digits >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer, nullptr);
  }
  if (digits < -308) return std::copysign(0.0, value);
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::copysign(std::nearbyint(value / unit) * unit, value);
}

Int nearest_multiple(Int value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -30) return 0;
  Int unit = 1;
  for (int64_t i = digits; i < 0; ++i) unit *= 10;
  Int rest = value % unit;
  if (rest < 0) rest += unit;
  const Int low = value - rest;
  const bool up = rest * 2 > unit || (rest * 2 == unit && low / unit % 2 != 0);
  return up ? low + unit : low;
}

}  // namespace

Value rounded(Runtime& runtime, const Value& value, Arguments& arguments) {
  const Values given = bound(runtime, "round", arguments, {"precision", "method"});
  const std::string method = given[1].is_missing() ? "common" : need_text(runtime, given[1]);
  if (method != "common" && method != "ceil" && method != "floor") runtime.fail("method must be common, ceil or floor");
  runtime.need_defined(value);
  if (!value.is_number()) runtime.fail("type " + std::string(type_name(value)) + " doesn't define __round__ method");
  const int64_t digits = given[0].is_missing() ? 0 : need_count(runtime, given[0], 400);
  runtime.step(8 + std::abs(digits));
  if (method == "common") {
    if (value.is_integer()) return Value(nearest_multiple(value.integer(), digits));
    return Value(nearest_decimal(value.real(), digits));
  }
  const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = value.real() * scale;
  if (!std::isfinite(scaled)) runtime.fail("cannot convert float infinity to integer");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale + 0.0);
}

}  // namespace lockstep::text::jinja
