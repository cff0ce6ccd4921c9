// str % value.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/utf8.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;
constexpr int64_t kWidest = int64_t{1} << 31;

// One conversion: %(key)-08.2f
struct Conversion {
  bool left = false, plus = false, blank = false, zero = false, alternate = false;
  Int width = 0;
  std::optional<Int> precision;
  char kind = 's';
};

std::string in_base(Int value, int base) {
  std::string digits;
  for (Int rest = value < 0 ? -value : value; rest > 0; rest /= base)
    digits += "0123456789abcdef"[static_cast<size_t>(rest % base)];
  if (digits.empty()) digits = "0";
  std::ranges::reverse(digits);
  return digits;
}

class PercentFormat {
 public:
  PercentFormat(Runtime& runtime, const std::string& format, const Value& value)
      : runtime_(runtime), text_(format), value_(value) {
    if (value.is_sequence(Flavour::tuple)) {
      runtime.charge(value.sequence().items.size() * sizeof(Value));
      arguments_ = value.sequence().items;
    } else {
      arguments_.push_back(value);
    }
    const bool indexed =
        value.is(Kind::dict) || value.is_undefined() ||
        (value.is(Kind::sequence) && (value.is_sequence(Flavour::list) || value.is_sequence(Flavour::range)));
    mapping_ = indexed;
  }

  std::string run() {
    while (place_ < text_.size()) {
      const char c = text_[place_++];
      if (c != '%')
        out_ += c;
      else
        conversion();
    }
    if (next_ < arguments_.size() && !mapping_) runtime_.fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  char peek() {
    if (place_ >= text_.size()) runtime_.fail("incomplete format");
    return text_[place_];
  }

  const Value& argument() {
    if (next_ >= arguments_.size()) runtime_.fail("not enough arguments for format string");
    return arguments_[next_++];
  }

  Value keyed() {
    if (!value_.is(Kind::dict)) runtime_.fail("format requires a mapping");
    const size_t begin = ++place_;
    for (int open = 1; open > 0; ++place_) {
      const char c = place_ < text_.size() ? text_[place_] : '\0';
      if (place_ >= text_.size()) runtime_.fail("incomplete format key");
      open += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    const std::string key = text_.substr(begin, place_ - 1 - begin);
    runtime_.step(static_cast<int64_t>(value_.dict().items.size() / 4));
    const Value* found = find_key(value_.dict(), key);
    if (found == nullptr) runtime_.fail(repr(key));
    next_ = arguments_.size();  // keys and places do not mix
    return *found;
  }

  Int number(bool& negative) {
    if (peek() == '*') {
      ++place_;
      const Value& given = argument();
      if (!given.is_integer()) runtime_.fail("* wants int");
      negative = given.integer() < 0;
      return std::min<Int>(negative ? -given.integer() : given.integer(), kWidest);
    }
    Int value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++place_) value = std::min<Int>(value * 10 + (peek() - '0'), kWidest);
    return value;
  }

  void conversion() {
    runtime_.step(8);
    Conversion how;
    Value keyed_value;
    if (peek() == '(') keyed_value = keyed();
    for (bool flag = true; flag;) switch (peek()) {
        case '-':
          how.left = true;
          ++place_;
          break;
        case '+':
          how.plus = true;
          ++place_;
          break;
        case ' ':
          how.blank = true;
          ++place_;
          break;
        case '0':
          how.zero = true;
          ++place_;
          break;
        case '#':
          how.alternate = true;
          ++place_;
          break;
        default: flag = false;
      }
    bool negative = false;
    how.width = number(negative);
    how.left = how.left || negative;
    if (peek() == '.') {
      ++place_;
      negative = false;
      const Int digits = number(negative);
      how.precision = negative ? 0 : digits;
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++place_;
    how.kind = text_[place_++];
    if (how.kind == '%') {
      out_ += '%';
      return;
    }
    const Value value = keyed_value.is_missing() ? argument() : keyed_value;
    append(how, value);
  }

  void append(const Conversion& how, const Value& value) {
    switch (how.kind) {
      case 's':
      case 'r':
      case 'a': return pad(how, cut(how, how.kind == 's' ? str(runtime_, value) : repr(runtime_, value)), "");
      case 'c': return pad(how, character(value), "");
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return integer(how, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': return real(how, value);
      default: runtime_.fail(std::string("unsupported format character '") + how.kind + "'");
    }
  }

  std::string cut(const Conversion& how, std::string text) {
    if (!how.precision) return text;
    const std::u32string codes = runtime_.codes(text);
    return static_cast<Int>(codes.size()) <= *how.precision
               ? text
               : to_utf8(std::u32string_view(codes).substr(0, static_cast<size_t>(*how.precision)));
  }

  std::string character(const Value& value) {
    if (value.is_string() && value.string().length == 1) return value.text();
    if (!value.is_integer()) runtime_.fail("%c requires int or char");
    const Int code = value.integer();
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
      runtime_.fail("%c arg not in range(0x110000)");
    std::string out;
    append_utf8(out, static_cast<uint32_t>(code));
    return out;
  }

  void integer(const Conversion& how, const Value& value) {
    const bool decimal = how.kind == 'd' || how.kind == 'i' || how.kind == 'u';
    Int number = 0;
    runtime_.need_defined(value);
    if (value.is_integer()) {
      number = value.integer();
    } else if (decimal && value.is(Kind::real) && std::fabs(value.real()) < 1e30) {
      number = static_cast<Int>(value.real());
    } else {
      runtime_.fail(std::string("%") + how.kind +
                    (decimal ? " format: a real number is required, not " : " format: an integer is required, not ") +
                    std::string(type_name(value)));
    }
    std::string digits = in_base(number, decimal ? 10 : how.kind == 'o' ? 8 : 16);
    if (how.kind == 'X') digits = upper(digits);
    if (how.precision) digits = padded(runtime_, digits, *how.precision, '>', "0");
    if (how.alternate && !decimal) digits = std::string("0") + how.kind + digits;
    pad(how, digits, sign(how, number < 0), how.alternate && !decimal ? 2 : 0);
  }

  static std::string sign(const Conversion& how, bool negative) {
    return negative ? "-" : how.plus ? "+" : how.blank ? " " : "";
  }

  void real(const Conversion& how, const Value& value) {
    runtime_.need_defined(value);
    if (!value.is_number()) runtime_.fail("must be real number, not " + std::string(type_name(value)));
    const int64_t precision = how.precision ? static_cast<int64_t>(*how.precision) : 6;
    if (precision > 100'000) runtime_.fail("precision too big");
    const char format[] = {'%',
                           how.alternate ? '#' : '.',
                           how.alternate ? '.' : '*',
                           how.alternate ? '*' : how.kind,
                           how.alternate ? how.kind : '\0',
                           '\0'};
    std::string buffer(static_cast<size_t>(precision) + 400, '\0');
    runtime_.charge(buffer.size());
    runtime_.pass_slowly(2 * buffer.size());
    const int size =
        std::snprintf(buffer.data(), buffer.size(), format, static_cast<int>(precision), std::fabs(value.real()));
    buffer.resize(static_cast<size_t>(size));
    pad(how, buffer, sign(how, std::signbit(value.real()) && !std::isnan(value.real())), 0);
  }

  // Sign, zeros and spaces around digits or a text; `prefix` characters (0x) stay before the zeros.
  void pad(const Conversion& how, const std::string& body, const std::string& sign, size_t prefix = 0) {
    const bool numeric = std::string_view("diuxXoeEfFgG").find(how.kind) != std::string_view::npos;
    std::string text = body;
    runtime_.charge(2 * (body.size() + sign.size()));
    if (how.zero && !how.left && numeric) {
      const Int width = how.width - static_cast<Int>(sign.size() + prefix);
      text = body.substr(0, prefix) + padded(runtime_, body.substr(prefix), width, '>', "0");
    }
    out_ += padded(runtime_, sign + text, how.width, how.left ? '<' : '>', " ");
  }

  Runtime& runtime_;
  const std::string& text_;
  const Value& value_;
  Values arguments_;
  bool mapping_ = false;
  size_t place_ = 0, next_ = 0;
  std::string out_;
};

}  // namespace

std::string percent_format(Runtime& runtime, const std::string& format, const Value& value) {
  runtime.charge(format.size());
  runtime.pass_slowly(format.size());
  return PercentFormat(runtime, format, value).run();
}

}  // namespace lockstep::text::jinja
