// Regular expressions that cut text, as the pre-tokenizers of Hugging Face `tokenizers` use them.
//
// PCRE2 with JIT, but with the Unicode classes of text/unicode_tables.h written out, so that a match does not depend on
// the Unicode version of the PCRE2 of this machine. Immutable; matching is re-entrant.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::text {

// `pattern` with \p{L}, \p{N} and \s (also inside brackets) and \S (outside) written as ranges. FormatError names any
// other class of characters.
std::string expand_classes(std::string_view pattern);

class SplitRegex {
 public:
  // FormatError with PCRE2's reason when the pattern is malformed.
  explicit SplitRegex(std::string_view pattern);
  SplitRegex(SplitRegex&&) noexcept;
  ~SplitRegex();

  // Calls piece(part) for the parts of `text` in order: every match, and whatever lies between two matches. `text` must
  // be valid UTF-8. Throws ResourceError when a match needs more memory than PCRE2 is given.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace lockstep::text
