// Regular expressions that cut text, as the pre-tokenizers of Hugging Face `tokenizers` use them.
//
// PCRE2, but with the Unicode classes of text/unicode.h written out, so that a match does not depend on the
// Unicode version of the PCRE2 of this machine. Immutable; matching is re-entrant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/regex.h"
#include "core/search_budget.h"
#include "text/span.h"

namespace lockstep::text {

// `pattern` with its Unicode classes as ranges: \p{L} \p{Lu} ... \P{L} \p{^L} \s \S \d \D \w \W, of which the negated
// ones not inside brackets. FormatError names what is anything else than PCRE2 and Oniguruma agree on: other classes,
// \b, brackets within brackets, && and POSIX classes in them, options other than (?i).
std::string expand_classes(std::string_view pattern);

class SplitRegex {
 public:
  // FormatError with PCRE2's reason when the pattern is malformed, and when it can match nothing at all: such a match
  // is a cut without text, which no known tokenizer means.
  explicit SplitRegex(std::string_view pattern);

  // Appends the matches in `text` (valid UTF-8), in order. Throws ResourceError when a match needs more memory or steps
  // than PCRE2 is given, and when the budget is spent.
  void find(std::string_view text, std::vector<Span>& matches, SearchBudget& budget) const;

 private:
  Regex regex_;
};

}  // namespace lockstep::text
