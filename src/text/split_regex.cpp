#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <span>

#include "core/error.h"
#include "text/unicode_tables.h"

namespace lockstep::text {

namespace {

std::string range_text(std::span<const unicode::Range> ranges) {
  std::string text;
  for (const auto& [first, last] : ranges) text += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", first, last);
  return text;
}

std::string reason(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// The class that begins at pattern[place], a backslash: its ranges and length; length 0 when it is another escape.
struct Class {
  std::span<const unicode::Range> ranges;
  size_t length = 0;
  bool negated = false;
};

Class class_at(std::string_view pattern, size_t place) {
  const std::string_view rest = pattern.substr(place);
  if (rest.starts_with("\\p{L}")) return {unicode::kLetter, 5};
  if (rest.starts_with("\\p{N}")) return {unicode::kNumber, 5};
  if (rest.starts_with("\\s")) return {unicode::kWhiteSpace, 2};
  if (rest.starts_with("\\S")) return {unicode::kWhiteSpace, 2, true};
  constexpr std::string_view kOtherClasses = "pPdDwWhHvVXRN";
  if (rest.size() > 1 && kOtherClasses.find(rest[1]) != std::string_view::npos)
    throw FormatError(
        {.what = "unsupported character class in a regular expression",
         .where = std::string(pattern),
         .got = std::string(rest.substr(0, rest.find('}') == std::string_view::npos ? 2 : rest.find('}') + 1)),
         .wanted = "\\p{L}, \\p{N}, \\s or \\S"});
  return {};
}

}  // namespace

std::string expand_classes(std::string_view pattern) {
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\') {
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      out += c;
      continue;
    }
    const Class found = class_at(pattern, i);
    if (found.length == 0) {
      out += pattern.substr(i, 2);
      ++i;
      continue;
    }
    if (in_brackets && found.negated)
      throw FormatError({.what = "unsupported character class in a regular expression",
                         .where = std::string(pattern),
                         .got = "\\S inside brackets"});
    const std::string ranges = range_text(found.ranges);
    out += in_brackets ? ranges : fmt::format("[{}{}]", found.negated ? "^" : "", ranges);
    i += found.length - 1;
  }
  return out;
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
  impl->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), PCRE2_UTF, &error, &place, nullptr);
  if (impl->code == nullptr)
    throw FormatError({.what = "malformed regular expression", .where = std::string(pattern), .got = reason(error)});
  // Where PCRE2 has no JIT, pcre2_match interprets the pattern: slower, the same matches.
  pcre2_jit_compile(impl->code, PCRE2_JIT_COMPLETE);
  impl_ = std::move(impl);
}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

void SplitRegex::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(impl_->code, nullptr), pcre2_match_data_free);
  if (match == nullptr) throw ResourceError({.what = "out of memory in a regular expression"});
  size_t done = 0, search = 0;
  while (search < text.size()) {
    // The text was checked once by the caller; checking it again at every match would be quadratic.
    const int result = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), search,
                                   PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw ResourceError(
          {.what = "a regular expression could not be matched", .got = reason(result), .attempt = "a shorter text"});
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    if (ends[0] > done) piece(text.substr(done, ends[0] - done));
    piece(text.substr(ends[0], ends[1] - ends[0]));
    done = search = ends[1];
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace lockstep::text
