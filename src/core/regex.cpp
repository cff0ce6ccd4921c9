#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/regex.h"

#include <pcre2.h>

#include <string>

#include "core/error.h"

namespace lockstep {

namespace {

template <class Handle, void (*kFree)(Handle*)>
struct Free {
  void operator()(Handle* handle) const { kFree(handle); }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data, pcre2_match_data_free>>;

template <class Owner>
Owner made(Owner owner) {
  if (owner == nullptr) throw ResourceError({.what = "out of memory in a regular expression"});
  return owner;
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

[[noreturn]] void fail_match(int code) {
  throw ResourceError(
      {.what = "a regular expression could not be matched", .got = pcre2_message(code), .attempt = "a shorter text"});
}

// Called before each item of a counted pattern.
int take_step(pcre2_callout_block*, void* steps) {
  return --*static_cast<int64_t*>(steps) < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

uint32_t compile_options(const RegexOptions& options) {
  uint32_t flags = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (options.multiline) flags |= PCRE2_MULTILINE;
  if (options.unicode_classes) flags |= PCRE2_UCP;
  if (options.counted) flags |= PCRE2_AUTO_CALLOUT;
  return flags;
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, Free<pcre2_code, pcre2_code_free>> handle;
};

Regex::Regex(std::string_view pattern, RegexOptions options, std::string_view written) {
  const auto context = made(CompileContext(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  auto code = std::make_shared<Code>();
  code->handle.reset(
      pcre2_compile(units(pattern), pattern.size(), compile_options(options), &error, &place, context.get()));
  if (code->handle == nullptr)
    throw FormatError({.what = "malformed regular expression",
                       .where = std::string(written.empty() ? pattern : written),
                       .got = pcre2_message(error)});
  // Where PCRE2 has no JIT, pcre2_match interprets the pattern: slower, the same matches.
  if (!options.counted) pcre2_jit_compile(code->handle.get(), PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

bool Regex::can_match_nothing() const {
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code_->handle.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  return matches_empty != 0;
}

struct Regex::Search::Impl {
  std::shared_ptr<const Code> code;
  std::string_view text;
  MatchData match;
  size_t place = 0;
};

Regex::Search::Search(const Regex& regex, std::string_view text)
    : impl_(new Impl{regex.code_, text,
                     made(MatchData(pcre2_match_data_create_from_pattern(regex.code_->handle.get(), nullptr)))}) {}
Regex::Search::~Search() = default;

std::optional<Regex::Span> Regex::Search::next() {
  if (impl_->place >= impl_->text.size()) return std::nullopt;
  // The text was checked once by the caller; checking it again at every match would be quadratic.
  const int result = pcre2_match(impl_->code->handle.get(), units(impl_->text), impl_->text.size(), impl_->place,
                                 PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, impl_->match.get(), nullptr);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) fail_match(result);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl_->match.get());
  impl_->place = ends[1];
  return Span{ends[0], ends[1]};
}

bool Regex::matches(std::string_view text, bool whole, int64_t& steps) const {
  constexpr uint32_t kMaxKib = 32 << 10;
  const auto context = made(MatchContext(pcre2_match_context_create(nullptr)));
  pcre2_set_heap_limit(context.get(), kMaxKib);
  pcre2_set_callout(context.get(), take_step, &steps);
  const auto match = made(MatchData(pcre2_match_data_create_from_pattern(code_->handle.get(), nullptr)));
  const int result = pcre2_match(code_->handle.get(), units(text), text.size(), 0,
                                 PCRE2_ANCHORED | (whole ? PCRE2_ENDANCHORED : 0), match.get(), context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) fail_match(result);
  return true;
}

}  // namespace lockstep
