#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

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

std::string reason(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
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

struct SplitRegex::Impl {
  pcre2_code* code = nullptr;
  ~Impl() { pcre2_code_free(code); }
};

SplitRegex::SplitRegex(std::string_view pattern) {
  auto impl = std::make_unique<Impl>();
  const std::string expanded = expand_classes(pattern);
  int error = 0;
  PCRE2_SIZE place = 0;
  // As Oniguruma has it: ^ and $ at every line, and \n alone ends a line whatever this PCRE2 was built with.
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw ResourceError({.what = "out of memory in a regular expression"});
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(),
                             PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get());
  if (impl->code == nullptr)
    throw FormatError({.what = "malformed regular expression", .where = std::string(pattern), .got = reason(error)});
  uint32_t matches_empty = 0;
  pcre2_pattern_info(impl->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0)
    throw FormatError(
        {.what = "unsupported regular expression: it can match nothing at all", .where = std::string(pattern)});
  // Where PCRE2 has no JIT, pcre2_match interprets the pattern: slower, the same matches.
  pcre2_jit_compile(impl->code, PCRE2_JIT_COMPLETE);
  impl_ = std::move(impl);
}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

void SplitRegex::find(std::string_view text, std::vector<Span>& matches) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(impl_->code, nullptr), pcre2_match_data_free);
  if (match == nullptr) throw ResourceError({.what = "out of memory in a regular expression"});
  for (size_t search = 0; search < text.size();) {
    // The text was checked once by the caller; checking it again at every match would be quadratic.
    const int result = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), search,
                                   PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw ResourceError(
          {.what = "a regular expression could not be matched", .got = reason(result), .attempt = "a shorter text"});
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    matches.push_back({ends[0], ends[1]});
    search = ends[1];
  }
}

}  // namespace lockstep::text
