#include "rl/reward/pattern.h"

#include <string>

#include "core/error.h"
#include "core/python_regex.h"
#include "core/utf8.h"

namespace lockstep::rl {

namespace {

std::optional<Regex> compiled(std::string_view pattern) {
  try {
    return Regex(python_to_pcre2(pattern), {.unicode_classes = true}, pattern);
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_pattern(std::string_view pattern) {
  return !pattern.empty() && compiled(pattern).has_value();
}

std::optional<double> grade_pattern(std::string_view response, std::string_view pattern) {
  if (pattern.empty()) return std::nullopt;
  const std::optional<Regex> regex = compiled(pattern);
  if (!regex) return std::nullopt;
  std::string text;
  append_lossy(text, response);
  try {
    return Regex::Search(*regex, text).next() ? 1 : 0;
  } catch (const ResourceError&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::rl
