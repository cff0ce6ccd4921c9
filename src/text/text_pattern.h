// {"String": ...} or {"Regex": ...}: the pattern of Split and Replace.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/split_regex.h"
#include "text/split_scanner.h"

namespace lockstep::text {

class TextPattern {
 public:
  // FormatError names `where`.
  TextPattern(const Json& json, const std::string& where);
  static TextPattern regex(std::string_view expression);

  // Appends the matches, none of them empty, in order. ResourceError as SplitRegex.
  void find(std::string_view text, std::vector<Span>& matches, SearchBudget& budget) const;
  // The string it looks for; empty for an expression.
  std::string_view literal() const;

 private:
  using Form = std::variant<std::string, SplitScanner, SplitRegex>;
  explicit TextPattern(Form form) : form_(std::move(form)) {}
  Form form_;
};

}  // namespace lockstep::text
