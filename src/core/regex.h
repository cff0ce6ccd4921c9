// Regular expressions: PCRE2 on UTF-8. Immutable; matching is re-entrant.
//
// Common to all: \n alone ends a line, whatever this PCRE2 was built with; \C, half a character, is refused. Patterns
// of files are hostile until they have matched, so an expression is either searched for by compiled code, with PCRE2's
// own limits, or its steps are counted and bounded by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace lockstep {

struct RegexOptions {
  bool multiline = false;        // ^ and $ at every line
  bool unicode_classes = false;  // \d \s \w \b by Unicode's properties, as far as this PCRE2 knows them
  bool counted = false;          // matched step by step, for `matches`; otherwise by JIT where PCRE2 has it
};

class Regex {
 public:
  struct Span {
    size_t begin = 0, end = 0;
  };

  // FormatError with PCRE2's reason, and with `written`: what the user wrote, if `pattern` was made of it.
  explicit Regex(std::string_view pattern, RegexOptions options = {}, std::string_view written = {});

  bool can_match_nothing() const;

  // Finds the matches in a text (valid UTF-8, which outlives this), in order, leaving out empty ones.
  class Search {
   public:
    Search(const Regex& regex, std::string_view text);
    ~Search();
    // ResourceError when a match needs more memory or steps than PCRE2 is given.
    std::optional<Span> next();

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Whether it matches `text` from the start, to the end if `whole`. Only with `counted`: `steps` falls by one for each
  // item of the pattern that is tried, and ResourceError is thrown when none are left, or at 32 MiB of memory.
  // ResourceError names no place; the caller knows whose pattern it is.
  bool matches(std::string_view text, bool whole, int64_t& steps) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace lockstep
