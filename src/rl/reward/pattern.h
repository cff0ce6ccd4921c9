// --rm-type regex: the label is a regular expression.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::rl {

// Whether `pattern` is one of Python's regular expressions (core/python_regex.h).
bool is_pattern(std::string_view pattern);

// 1: it is found in the response (Python's re.search, but for empty matches, which are not counted as found); else 0.
// nullopt: no pattern, or it takes PCRE2 more steps than it is given.
std::optional<double> grade_pattern(std::string_view response, std::string_view pattern);

}  // namespace lockstep::rl
