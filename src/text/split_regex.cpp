#include "text/split_regex.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

using unicode::Range;

constexpr std::array<std::string_view, 28> kCategoryNames = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                                             "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                                             "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

std::string range_text(uint32_t first, uint32_t last) {
  return fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", first, last);
}

std::string ranges_text(std::span<const Range> ranges) {
  std::string text;
  for (const auto& [first, last] : ranges) text += range_text(first, last);
  return text;
}

// The ranges of "Lu" or "L"; empty when there is no such category.
std::string category_text(std::string_view name) {
  std::string text;
  std::optional<Range> open;  // neighbours of one class are one range
  for (const auto& [first, last, category] : unicode::kCategories) {
    if (name.empty() || !kCategoryNames[static_cast<size_t>(category)].starts_with(name)) continue;
    if (open && open->last + 1 == first) {
      open->last = last;
      continue;
    }
    if (open) text += range_text(open->first, open->last);
    open = Range{first, last};
  }
  return open ? text + range_text(open->first, open->last) : text;
}

// Rewrites a pattern from left to right.
class Expansion {
 public:
  explicit Expansion(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (place_ < pattern_.size()) {
      if (pattern_[place_] == '\\')
        escape();
      else if (in_brackets_)
        inside_brackets();
      else
        outside_brackets();
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    throw FormatError({.what = "unsupported part of a regular expression",
                       .where = std::string(pattern_),
                       .got = std::string(part),
                       .wanted = "\\p{..}, \\s, \\S, \\d, \\w, plain brackets and groups, (?i:..)"});
  }
  std::string_view rest() const { return pattern_.substr(place_); }
  void copy(size_t size) {
    out_ += pattern_.substr(place_, size);
    place_ += size;
  }

  void outside_brackets() {
    if (rest().starts_with("}+")) refuse("}+");  // possessive in PCRE2, a repetition of a repetition in Oniguruma
    if (rest().starts_with("(*")) refuse("(*");
    if (rest().starts_with("(?") && !rest().starts_with("(?:") && !rest().starts_with("(?i") &&
        !rest().starts_with("(?=") && !rest().starts_with("(?!") && !rest().starts_with("(?<=") &&
        !rest().starts_with("(?<!") && !rest().starts_with("(?>"))
      refuse(rest().substr(0, 3));
    if (rest().starts_with("(?i") && !rest().starts_with("(?i:") && !rest().starts_with("(?i)")) refuse("(?i");
    in_brackets_ = rest()[0] == '[';
    copy(1);
    if (!in_brackets_) return;
    if (rest().starts_with('^')) copy(1);
    if (rest().starts_with(']')) refuse("[]");
  }

  void inside_brackets() {
    if (rest()[0] == '[' || rest().starts_with("&&")) refuse(rest().substr(0, 2));
    if (rest()[0] == ']') in_brackets_ = false;
    copy(1);
  }

  void add_class(const std::string& ranges, bool negated, size_t size) {
    if (negated && in_brackets_) refuse(fmt::format("{} inside brackets", rest().substr(0, size)));
    out_ += in_brackets_ ? ranges : fmt::format("[{}{}]", negated ? "^" : "", ranges);
    place_ += size;
  }

  void escape() {
    const char kind = rest().size() > 1 ? rest()[1] : '\0';
    switch (kind) {
      case 's':
      case 'S': return add_class(ranges_text(unicode::kWhiteSpace), kind == 'S', 2);
      case 'w':
      case 'W': return add_class(ranges_text(unicode::kWordRegex), kind == 'W', 2);
      case 'd':
      case 'D': return add_class(category_text("Nd"), kind == 'D', 2);
      case 'p':
      case 'P': return property();
      default: break;
    }
    const bool alphanumeric =
        (kind >= '0' && kind <= '9') || (kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z');
    constexpr std::string_view kSame = "rntfexAz";
    if (alphanumeric && (kSame.find(kind) == std::string_view::npos || (in_brackets_ && (kind == 'A' || kind == 'z'))))
      refuse(rest().substr(0, 2));
    copy(std::min<size_t>(2, rest().size()));
  }

  void property() {
    const size_t end = rest().find('}');
    if (!rest().substr(2).starts_with('{') || end == std::string_view::npos) refuse(rest().substr(0, 3));
    std::string_view name = rest().substr(3, end - 3);
    bool negated = rest()[1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    // C holds what is not assigned too, which has no ranges here.
    const std::string ranges = name == "C" ? "" : category_text(name);
    if (ranges.empty()) refuse(rest().substr(0, end + 1));
    add_class(ranges, negated, end + 1);
  }

  std::string_view pattern_;
  std::string out_;
  size_t place_ = 0;
  bool in_brackets_ = false;
};

}  // namespace

std::string expand_classes(std::string_view pattern) {
  return Expansion(pattern).run();
}

// As Oniguruma has it: ^ and $ at every line.
SplitRegex::SplitRegex(std::string_view pattern) : regex_(expand_classes(pattern), {.multiline = true}, pattern) {
  if (regex_.can_match_nothing())
    throw FormatError(
        {.what = "unsupported regular expression: it can match nothing at all", .where = std::string(pattern)});
}

void SplitRegex::find(std::string_view text, std::vector<Span>& matches, SearchBudget& budget) const {
  Regex::Search search(regex_, text);
  while (const auto match = search.next()) {
    matches.push_back({match->begin, match->end});
    budget.spend();
  }
}

}  // namespace lockstep::text
