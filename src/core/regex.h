// Regular expressions: PCRE2 on UTF-8. Immutable; matching is re-entrant.
//
// In all modes: only \n ends a line, however this PCRE2 was built; \C, half a character, is refused. Patterns of files
// may be hostile: an expression either runs as JIT-compiled code with PCRE2's own limits, or its steps are counted and
// limited by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace lockstep {

struct RegexOptions {
  bool multiline = false;        // ^ and $ at every line
  bool unicode_classes = false;  // \d \s \w \b by Unicode properties, as far as this PCRE2 knows them
  bool counted = false;          // interpreted with a step count, for `matches`; otherwise JIT where PCRE2 has it
};

class Regex {
 public:
  struct Span {
    size_t begin = 0, end = 0;
  };

  // FormatError with PCRE2's reason, and with `written`: what the user wrote, if `pattern` was derived from it.
  explicit Regex(std::string_view pattern, RegexOptions options = {}, std::string_view written = {});

  bool can_match_nothing() const;

  // Finds the non-empty matches in a text (valid UTF-8, which must outlive this), in order.
  class Search {
   public:
    Search(const Regex& regex, std::string_view text);
    ~Search();
    // ResourceError when a match needs more memory or steps than PCRE2 allows.
    std::optional<Span> next();

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Whether it matches `text` from the start, and to the end if `whole`. Only with `counted`: `steps` decreases by one
  // for each item of the pattern that is tried; ResourceError when none are left, or at 32 MiB of memory.
  // The ResourceError names no place, because only the caller knows where the pattern is from.
  bool matches(std::string_view text, bool whole, int64_t& steps) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace lockstep
