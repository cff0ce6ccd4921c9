// str.format: "{} {name!r:>8}".
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/utf8.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

namespace {

using Kind = Value::Kind;

struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '\0', kind = '\0';
  bool alternate = false, zero = false, comma = false;
  Int width = 0;
  std::optional<Int> precision;
};

Spec parse_spec(Runtime& runtime, const std::string& text) {
  Spec spec;
  std::u32string codes = runtime.codes(text);
  size_t i = 0;
  const auto at = [&](size_t place) { return place < codes.size() ? codes[place] : U'\0'; };
  const auto is_align = [](char32_t c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (is_align(at(1)) && !codes.empty()) {
    spec.fill = to_utf8({&codes[0], 1});
    spec.align = static_cast<char>(at(1));
    i = 2;
  } else if (is_align(at(0))) {
    spec.align = static_cast<char>(at(0));
    i = 1;
  }
  if (at(i) == '+' || at(i) == '-' || at(i) == ' ') spec.sign = static_cast<char>(codes[i++]);
  if (at(i) == '#') {
    spec.alternate = true;
    ++i;
  }
  if (at(i) == '0') {
    spec.zero = true;
    ++i;
  }
  const auto number = [&] {
    Int value = 0;
    for (; at(i) >= '0' && at(i) <= '9'; ++i)
      value = std::min<Int>(value * 10 + static_cast<Int>(codes[i] - '0'), Int{1} << 31);
    return value;
  };
  spec.width = number();
  if (at(i) == ',' || at(i) == '_') {
    spec.comma = at(i) == ',';
    if (!spec.comma) runtime.unsupported("_ in a format specification");
    ++i;
  }
  if (at(i) == '.') {
    ++i;
    spec.precision = number();
  }
  if (i < codes.size()) spec.kind = static_cast<char>(codes[i] < 0x80 ? codes[i] : '?'), ++i;
  if (i < codes.size()) runtime.fail("Invalid format specifier");
  if (spec.zero && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  return spec;
}

void group_thousands(std::string& digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t place = whole; place > 3; place -= 3) digits.insert(place - 3, ",");
}

std::string finished(Runtime& runtime, const Spec& spec, const std::string& sign, const std::string& body,
                     char usual_align) {
  const char align = spec.align == '\0' ? usual_align : spec.align;
  if (align == '=') return sign + padded(runtime, body, spec.width - static_cast<Int>(sign.size()), '>', spec.fill);
  return padded(runtime, sign + body, spec.width, align, spec.fill);
}

std::string sign_of(const Spec& spec, bool negative) {
  return negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
}

std::string real_digits(Runtime& runtime, const Spec& spec, double value) {
  const double magnitude = std::fabs(value);
  if (spec.kind == '\0' && !spec.precision) return repr(magnitude);
  if (spec.kind == '\0' || spec.kind == 'n') runtime.unsupported("this format specification of a float");
  const bool percent = spec.kind == '%';
  const int64_t precision = spec.precision ? static_cast<int64_t>(*spec.precision) : 6;
  if (precision > 100'000) runtime.fail("precision too big");
  const char format[] = {'%', '.', '*', percent ? 'f' : spec.kind, '\0'};
  std::string buffer(static_cast<size_t>(precision) + 400, '\0');
  runtime.charge(buffer.size());
  runtime.pass_slowly(2 * buffer.size());
  const int size = std::snprintf(buffer.data(), buffer.size(), format, static_cast<int>(precision),
                                 percent ? magnitude * 100 : magnitude);
  buffer.resize(static_cast<size_t>(size));
  return percent ? buffer + "%" : buffer;
}

std::string integer_digits(Runtime& runtime, const Spec& spec, Int value) {
  const Int magnitude = value < 0 ? -value : value;
  if (spec.precision) runtime.fail("Precision not allowed in integer format specifier");
  if (spec.kind == '\0' || spec.kind == 'd') return text_of(magnitude);
  const int base = spec.kind == 'b' ? 2 : spec.kind == 'o' ? 8 : 16;
  std::string digits;
  for (Int rest = magnitude; rest > 0; rest /= base) digits += "0123456789abcdef"[static_cast<size_t>(rest % base)];
  if (digits.empty()) digits = "0";
  std::ranges::reverse(digits);
  if (spec.alternate) runtime.unsupported("# in a format specification");
  return spec.kind == 'X' ? upper(digits) : digits;
}

bool is_one_of(char kind, std::string_view kinds) {
  return kind == '\0' || kinds.find(kind) != std::string_view::npos;
}

}  // namespace

std::string with_spec(Runtime& runtime, const Value& value, const std::string& spec_text) {
  if (spec_text.empty()) return str(runtime, value);
  const Spec spec = parse_spec(runtime, spec_text);
  const auto wrong_kind = [&] {
    runtime.fail(std::string("Unknown format code '") + spec.kind + "' for object of type '" +
                 std::string(type_name(value)) + "'");
  };
  if (value.is_string()) {
    if (!is_one_of(spec.kind, "s")) wrong_kind();
    if (spec.align == '=' || spec.sign != '\0' || spec.comma) runtime.fail("not allowed in string format specifier");
    std::string text = value.text();
    runtime.charge(text.size());
    if (spec.precision && *spec.precision < static_cast<Int>(value.string().length))
      text.resize(byte_of_character(runtime, value.string(), static_cast<size_t>(*spec.precision)));
    return finished(runtime, spec, "", text, '<');
  }
  if (value.is_integer() && is_one_of(spec.kind, "dboxX")) {
    std::string digits = integer_digits(runtime, spec, value.integer());
    if (spec.comma) group_thousands(digits);
    return finished(runtime, spec, sign_of(spec, value.integer() < 0), digits, '>');
  }
  if (value.is_number()) {
    if (!is_one_of(spec.kind, "eEfFgG%n")) wrong_kind();
    std::string digits = real_digits(runtime, spec, value.real());
    if (spec.comma) group_thousands(digits);
    return finished(runtime, spec, sign_of(spec, std::signbit(value.real())), digits, '>');
  }
  runtime.fail("unsupported format string passed to " + std::string(type_name(value)) + ".__format__");
}

namespace {

class BraceFormat {
 public:
  BraceFormat(Runtime& runtime, const Arguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  std::string run(std::string_view text, int depth) {
    if (depth < 0) runtime_.fail("Max string recursion exceeded");
    runtime_.pass_slowly(3 * text.size());  // a field is looked at for its end, its parts and what is in them
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c != '{' && c != '}') {
        out += c;
      } else if (i + 1 < text.size() && text[i + 1] == c) {
        out += c;
        ++i;
      } else if (c == '}') {
        runtime_.fail("Single '}' encountered in format string");
      } else {
        const size_t end = end_of_field(text, i + 1);
        out += field(text.substr(i + 1, end - i - 1), depth);
        i = end;
      }
    }
    runtime_.charge(out.size());
    return out;
  }

 private:
  size_t end_of_field(std::string_view text, size_t begin) {
    int open = 1;
    for (size_t i = begin; i < text.size(); ++i) {
      open += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
      if (open == 0) return i;
    }
    runtime_.fail("expected '}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    runtime_.step(16);
    size_t end = 0;
    for (bool inside = false; end < text.size(); ++end) {
      if (text[end] == '[') inside = true;
      if (text[end] == ']') inside = false;
      if (!inside && (text[end] == ':' || text[end] == '!')) break;
    }
    Value value = find(text.substr(0, end));
    if (end < text.size() && text[end] == '!') {
      const char how = end + 1 < text.size() ? text[end + 1] : '\0';
      if (how != 'r' && how != 's') runtime_.unsupported("this conversion in str.format");
      value = runtime_.text(how == 'r' ? repr(runtime_, value) : str(runtime_, value));
      end += 2;
      if (end < text.size() && text[end] != ':') runtime_.fail("expected ':' after conversion specifier");
    }
    const std::string spec = end < text.size() ? run(text.substr(end + 1), depth - 1) : "";
    return with_spec(runtime_, value, spec);
  }

  Value find(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    std::string_view rest = name.substr(end);
    while (!rest.empty()) {
      const bool item = rest[0] == '[';
      const size_t stop = item ? rest.find(']') : std::min(rest.find_first_of(".[", 1), rest.size());
      if (stop == std::string_view::npos || stop <= 1) runtime_.fail("Empty attribute in format string");
      const std::string key(rest.substr(1, stop - 1));
      const bool digits = key.size() < 18 && std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
      value = item ? get_item(runtime_, value, digits ? Value(Int{std::stoll(key)}) : runtime_.text(key))
                   : get_attribute(runtime_, value, runtime_.text(key));
      rest.remove_prefix(item ? stop + 1 : stop);
    }
    return value;
  }

  Value first(std::string_view name) {
    const bool digits = name.size() < 10 && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    if (digits) {
      if (!name.empty() ? automatic_ > 0 : manual_)
        runtime_.fail("cannot switch between manual field specification and automatic field numbering");
      manual_ = !name.empty();
      const size_t index = name.empty() ? automatic_++ : static_cast<size_t>(std::stoul(std::string(name)));
      if (index >= arguments_.positional.size())
        runtime_.fail("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
      return arguments_.positional[index];
    }
    runtime_.step(static_cast<int64_t>(arguments_.named.size() / 2));
    for (const auto& [key, value] : arguments_.named)
      if (key == name) return value;
    runtime_.fail(repr(name));
  }

  Runtime& runtime_;
  const Arguments& arguments_;
  size_t automatic_ = 0;
  bool manual_ = false;
};

}  // namespace

std::string brace_format(Runtime& runtime, const std::string& format, const Arguments& arguments) {
  return BraceFormat(runtime, arguments).run(format, 2);
}

}  // namespace lockstep::text::jinja
