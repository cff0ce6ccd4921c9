// Regular expressions of Python's module `re` (version 3.11, patterns of type str), run by PCRE2.
//
// A pattern is parsed by Python's grammar and translated into a PCRE2 pattern that means the same. So a pattern that
// Python refuses is an error here, too, and syntax that only PCRE2 has is never used. Differences from Python: (?x),
// (?m), (?a), (?L) and \N{...} are errors; the alternatives of a look-behind may have different lengths; Unicode
// properties and case folding are those of the installed PCRE2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/regex.h"

namespace lockstep {

// The same pattern for PCRE2. FormatError with the pattern, the part that is wrong, and what would be right.
std::string python_to_pcre2(std::string_view pattern);

class PythonRegex {
 public:
  explicit PythonRegex(std::string_view pattern);  // FormatError

  // Whether re.fullmatch (the whole text) or re.match (the beginning of the text) finds a match. `steps` bounds the
  // cost as in Regex::matches: ResourceError.
  bool fullmatch(std::string_view text, int64_t& steps) const { return regex_.matches(text, true, steps); }
  bool match(std::string_view text, int64_t& steps) const { return regex_.matches(text, false, steps); }

 private:
  Regex regex_;
};

}  // namespace lockstep
