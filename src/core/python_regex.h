// Python's regular expressions (`re`, patterns of type str, version 3.11), as the files of Python programs hold them.
//
// A pattern is read by Python's grammar and written anew in the part of PCRE2's where both mean the same, so what
// Python refuses is refused here too, and what only PCRE2 knows is never reached. Python's, and not read here: (?x),
// (?m),
// (?a), (?L), \N{...}. Accepted beyond Python: a look-behind whose alternatives have different lengths. Unicode's
// properties and small letters are those of this machine's PCRE2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/regex.h"

namespace lockstep {

// The pattern in PCRE2's words. FormatError with the pattern, its faulty part and what would do.
std::string python_to_pcre2(std::string_view pattern);

class PythonRegex {
 public:
  explicit PythonRegex(std::string_view pattern);  // FormatError

  // re.fullmatch and re.match: from the start to the end, and from the start. `steps` bounds their cost as in
  // Regex::matches: ResourceError.
  bool fullmatch(std::string_view text, int64_t& steps) const { return regex_.matches(text, true, steps); }
  bool match(std::string_view text, int64_t& steps) const { return regex_.matches(text, false, steps); }

 private:
  Regex regex_;
};

}  // namespace lockstep
