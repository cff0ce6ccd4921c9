#include "core/python_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"

namespace lockstep {

namespace {

// str.isspace and its complement, for between brackets.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
constexpr std::string_view kNoSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1b}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_octal(char c) {
  return c >= '0' && c <= '7';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Reads a pattern from left to right and writes it in PCRE2's words; the names follow Python's re/_parser.py.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    if (valid_utf8_prefix(pattern_) < pattern_.size()) refuse("bytes that are no UTF-8", "a text");
    while (place_ < pattern_.size()) item();
    if (!open_.empty()) refuse("(", "a closing bracket");
    return std::move(out_);
  }

 private:
  // What stands before the next character; only some of it can be repeated.
  enum class Before { nothing, item, assertion, quantifier };
  struct Open {
    int group = 0;  // 0: not captured
  };

  [[noreturn]] void refuse(std::string_view part, std::string_view wanted) const {
    throw FormatError({.what = "a regular expression cannot be read",
                       .where = std::string(pattern_),
                       .got = std::string(part),
                       .wanted = std::string(wanted)});
  }
  std::string_view rest() const { return pattern_.substr(place_); }
  char peek(size_t ahead = 0) const { return place_ + ahead < pattern_.size() ? pattern_[place_ + ahead] : '\0'; }
  bool ended(size_t ahead = 0) const { return place_ + ahead >= pattern_.size(); }
  bool take(std::string_view expected) {
    if (!rest().starts_with(expected)) return false;
    place_ += expected.size();
    return true;
  }
  // The text up to `end`, which is passed too.
  std::string_view take_until(char end, std::string_view part) {
    const size_t found = rest().find(end);
    if (found == std::string_view::npos) refuse(part, fmt::format("a closing {}", end));
    const std::string_view text = rest().substr(0, found);
    place_ += found + 1;
    return text;
  }
  // One character, whole.
  std::string_view take_character() {
    const std::string_view bytes = rest().substr(0, read_utf8(rest()).size);
    place_ += bytes.size();
    return bytes;
  }
  static void append_literal(std::string& out, std::string_view character) {
    if (character.size() > 1 || is_letter(character[0]) || is_digit(character[0]))
      out += character;
    else
      append_code(out, static_cast<uint8_t>(character[0]));
  }
  static void append_code(std::string& out, uint32_t code) { out += fmt::format("\\x{{{:x}}}", code); }

  void put(std::string_view text, Before kind = Before::item) {
    out_ += text;
    before_ = kind;
  }

  void item() {
    switch (peek()) {
      case '\\': return escape();
      case '[': return brackets();
      case '(': return open_group();
      case ')': return close_group();
      case '*':
      case '+':
      case '?': return quantify(std::string(take_character()));
      case '{':
        if (const auto quantifier = counted()) return quantify(*quantifier);
        break;
      case '|': return ++place_, put("|", Before::nothing);
      case '^':
      case '$': return put(take_character(), Before::assertion);
      case '.': return put(take_character());
      default: break;
    }
    append_literal(out_, take_character());
    before_ = Before::item;
  }

  void quantify(std::string quantifier) {
    if (before_ == Before::quantifier) refuse(quantifier, "one quantifier behind an item");
    if (before_ != Before::item) refuse(quantifier, "something to repeat before it");
    if (take("?"))
      quantifier += '?';
    else if (take("+"))
      quantifier += '+';
    put(quantifier, Before::quantifier);
  }

  // {m}, {m,}, {,n}, {m,n}; anything else that begins with a brace is itself.
  std::optional<std::string> counted() {
    const std::string_view text = rest();
    size_t end = 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < text.size() && is_digit(text[end])) ++end;
      return std::string(text.substr(begin, end - begin));
    };
    const std::string low = digits();
    const bool comma = end < text.size() && text[end] == ',';
    if (comma) ++end;
    const std::string high = comma ? digits() : low;
    if (end >= text.size() || text[end] != '}' || (low.empty() && !comma)) return std::nullopt;
    place_ += end + 1;
    return "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
  }

  // --- escapes ---------------------------------------------------------------------------------------------------

  void escape() {
    const std::string_view whole = rest().substr(0, 2);
    switch (peek(1)) {
      case 'A':
      case 'b':
      case 'B': return place_ += 2, put(whole, Before::assertion);
      case 'Z': return place_ += 2, put("\\z", Before::assertion);
      case 's': return place_ += 2, put(fmt::format("[{}]", kSpace));
      case 'S': return place_ += 2, put(fmt::format("[{}]", kNoSpace));
      case 'd':
      case 'D':
      case 'w':
      case 'W': return place_ += 2, put(whole);
      default: break;
    }
    if (is_digit(peek(1)) && peek(1) != '0' && !is_octal_escape()) return back_reference();
    append_code(out_, escaped_character(false));
    before_ = Before::item;
  }

  // Three octal digits behind the backslash.
  bool is_octal_escape() const { return is_octal(peek(1)) && is_octal(peek(2)) && is_octal(peek(3)); }

  void back_reference() {
    const size_t size = is_digit(peek(2)) ? 3 : 2;
    const std::string_view text = rest().substr(0, size);
    place_ += size;
    refer(number(text.substr(1)), text);
  }

  void refer(int group, std::string_view text) {
    if (group > num_groups_) refuse(text, "the number of a group before it");
    if (std::ranges::any_of(open_, [group](const Open& open) { return open.group == group; }))
      refuse(text, "a group that is closed");
    put(fmt::format("\\g{{{}}}", group));
  }

  static int number(std::string_view digits) {
    int value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }

  // The code point of an escape that stands for one.
  uint32_t escaped_character(bool in_brackets) {
    if (ended(1)) refuse("\\", "a character behind it");
    const char kind = peek(1);
    constexpr std::string_view kNames = "afnrtv", kValues = "\a\f\n\r\t\v";
    if (const size_t found = kNames.find(kind); found != std::string_view::npos) return place_ += 2, kValues[found];
    if (kind == 'b' && in_brackets) return place_ += 2, '\b';
    if (kind == 'x') return hexadecimal(2);
    if (kind == 'u') return hexadecimal(4);
    if (kind == 'U') return hexadecimal(8);
    if (is_digit(kind)) return octal();
    if (is_letter(kind)) refuse(rest().substr(0, 2), "an escape that Python knows");
    ++place_;
    return read_utf8(take_character()).code;
  }

  uint32_t hexadecimal(size_t digits) {
    const std::string_view text = rest().substr(0, 2 + digits);
    uint32_t code = 0;
    const auto [end, failed] = std::from_chars(text.data() + 2, text.data() + text.size(), code, 16);
    if (text.size() != 2 + digits || end != text.data() + text.size() || failed != std::errc())
      refuse(text, fmt::format("{} hexadecimal digits", digits));
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) refuse(text, "a character of Unicode");
    place_ += text.size();
    return code;
  }

  uint32_t octal() {
    size_t end = 1;
    while (end < 4 && is_octal(peek(end))) ++end;
    const std::string_view text = rest().substr(0, std::max<size_t>(end, 2));
    uint32_t code = 0;
    for (const char c : text.substr(1)) code = code * 8 + static_cast<uint32_t>(c - '0');
    if (end == 1 || code > 0377) refuse(text, "an octal number up to \\377");
    place_ += end;
    return code;
  }

  // --- brackets --------------------------------------------------------------------------------------------------

  void brackets() {
    const size_t begin = place_++;
    std::string set = take("^") ? "[^" : "[";
    for (bool first = true; first || peek() != ']'; first = false) {
      const auto low = member(set, begin);
      if (peek() != '-') {
        if (low) append_code(set, *low);
        continue;
      }
      if (peek(1) == ']') {  // a hyphen at the end is itself
        if (low) append_code(set, *low);
        append_code(set, '-');
        ++place_;
        break;
      }
      ++place_;
      const auto high = member(set, begin);
      if (!low || !high || *low > *high) refuse(pattern_.substr(begin, place_ - begin), "a range of two characters");
      append_code(set, *low);
      set += '-';
      append_code(set, *high);
    }
    ++place_;
    put(set + "]");
  }

  // A character; nothing for a class such as \d, which is appended.
  std::optional<uint32_t> member(std::string& set, size_t begin) {
    if (ended()) refuse(pattern_.substr(begin), "a closing ]");
    if (peek() != '\\') return read_utf8(take_character()).code;
    switch (peek(1)) {
      case 's': return set += kSpace, place_ += 2, std::nullopt;
      case 'S': return set += kNoSpace, place_ += 2, std::nullopt;
      case 'd':
      case 'D':
      case 'w':
      case 'W': return set += take_characters(2), std::nullopt;
      default: return escaped_character(true);
    }
  }
  std::string_view take_characters(size_t count) {
    const std::string_view text = rest().substr(0, count);
    place_ += count;
    return text;
  }

  // --- groups ----------------------------------------------------------------------------------------------------

  void open_group() {
    const size_t begin = place_++;
    if (!take("?")) return capture();
    for (const char* same : {":", "=", "!", "<=", "<!", ">"})
      if (take(same)) return enter(fmt::format("(?{}", same), 0);
    if (take("#")) return void(take_until(')', "(?#"));  // what stands before it can still be repeated
    if (take("P<")) return named_group();
    if (take("P=")) {
      const std::string_view name = take_until(')', "(?P=");
      return refer(group_called(name), name);
    }
    if (take("(")) return conditional();
    flags(begin);
  }

  void capture() {
    ++num_groups_;
    enter("(", num_groups_);
  }

  void enter(std::string_view opening, int group) {
    put(opening, Before::nothing);
    open_.push_back({group});
  }

  void close_group() {
    if (open_.empty()) refuse(")", "an opening bracket");
    open_.pop_back();
    ++place_;
    put(")");
  }

  void named_group() {
    const std::string_view name = take_until('>', "(?P<");
    check_name(name);
    if (!names_.emplace(name, num_groups_ + 1).second) refuse(name, "a name for one group only");
    capture();
  }

  void check_name(std::string_view name) const {
    const auto allowed = [](char c) {
      return is_letter(c) || is_digit(c) || c == '_' || static_cast<uint8_t>(c) >= 0x80;
    };
    if (name.empty() || is_digit(name[0]) || !std::ranges::all_of(name, allowed)) refuse(name, "a group name");
  }

  int group_called(std::string_view name) const {
    check_name(name);
    const auto found = names_.find(name);
    if (found == names_.end()) refuse(name, "the name of a group before it");
    return found->second;
  }

  // (?(1)yes|no), (?(name)yes|no); PCRE2 sees whether there is such a group.
  void conditional() {
    const std::string_view name = take_until(')', "(?(");
    const bool numeric = !name.empty() && name.size() < 4 && std::ranges::all_of(name, is_digit);
    const int group = numeric ? number(name) : group_called(name);
    if (group == 0) refuse(name, "the number of a group");
    enter(fmt::format("(?({})", group), 0);
  }

  // (?i) at the very start, (?i:...) anywhere.
  void flags(size_t begin) {
    const size_t end = rest().find_first_of(":)");
    const std::string_view text =
        pattern_.substr(begin, end == std::string_view::npos ? end : place_ + end - begin + 1);
    const std::string_view letters = rest().substr(0, end);
    const bool scoped = text.ends_with(':');
    constexpr std::string_view kWanted = "(?i) or (?s) at the start, (?i:, (?s: or another group that Python knows";
    if (end == std::string_view::npos || letters.empty()) refuse(text.substr(0, 3), kWanted);
    std::string kept;
    for (const char c : letters) {
      if (c == 'u' && !scoped) continue;  // what a str has anyway
      const bool known = c == 'i' || c == 's' || (c == '-' && scoped && kept.find('-') == kept.npos);
      if (!known || (c != '-' && kept.find('-') != kept.npos && kept.find(c) != kept.npos)) refuse(text, kWanted);
      kept += c;
    }
    if (kept.ends_with('-')) refuse(text, kWanted);
    place_ += end + 1;
    if (scoped) return enter(fmt::format("(?{}:", kept), 0);
    if (before_ != Before::nothing || out_.find_first_not_of("(?is)") != std::string::npos || !open_.empty())
      refuse(text, "flags at the start of the expression");
    if (!kept.empty()) out_ += fmt::format("(?{})", kept);
  }

  std::string_view pattern_;
  std::string out_;
  size_t place_ = 0;
  Before before_ = Before::nothing;
  std::vector<Open> open_;
  int num_groups_ = 0;
  std::map<std::string_view, int> names_;
};

}  // namespace

std::string python_to_pcre2(std::string_view pattern) {
  return Translation(pattern).run();
}

PythonRegex::PythonRegex(std::string_view pattern)
    : regex_(python_to_pcre2(pattern), {.unicode_classes = true, .counted = true}, pattern) {}

}  // namespace lockstep
