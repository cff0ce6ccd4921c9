#include "recipes/reward.h"

#include <algorithm>
#include <cctype>

namespace lockstep::recipes {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string clean(std::string_view text) {
  std::string kept;
  for (char c : text)
    if (c != ',' && c != '$' && std::isspace(static_cast<unsigned char>(c)) == 0) kept += c;
  return kept;
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kOpen = "\\boxed{";
  const size_t at = text.rfind(kOpen);
  if (at == std::string_view::npos) return std::nullopt;
  const size_t begin = at + kOpen.size();
  int depth = 1;
  for (size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return text.substr(begin, i - begin);
  }
  return std::nullopt;
}

// digits with commas between, one point, an optional sign; "3-4" holds 3 and 4, not -4.
std::optional<std::string_view> last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  size_t begin = end;
  bool point = false;
  while (begin > 0) {
    const char c = text[begin - 1];
    const bool inner = begin > 1 && is_digit(text[begin - 2]);
    if (is_digit(c) || (c == ',' && inner))
      --begin;
    else if (c == '.' && !point && is_digit(text[begin]))
      point = true, --begin;
    else
      break;
  }
  if (begin > 0 && text[begin - 1] == '-' && (begin == 1 || !std::isalnum(static_cast<unsigned char>(text[begin - 2]))))
    --begin;
  return text.substr(begin, end - begin);
}

// Canonical form of a decimal ("-1.5", no leading or trailing zeros), nullopt if it is none.
std::optional<std::string> decimal(const std::string& text) {
  size_t i = 0;
  bool negative = false;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) negative = text[i++] == '-';
  std::string whole, fraction;
  while (i < text.size() && is_digit(text[i])) whole += text[i++];
  if (i < text.size() && text[i] == '.')
    for (++i; i < text.size() && is_digit(text[i]); ++i) fraction += text[i];
  if (i != text.size() || (whole.empty() && fraction.empty())) return std::nullopt;
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  const bool zero = whole.empty() && fraction.empty();
  return std::string(negative && !zero ? "-" : "") + (whole.empty() ? "0" : whole) +
         (fraction.empty() ? "" : "." + fraction);
}

}  // namespace

std::optional<std::string> extract_answer(std::string_view text) {
  if (const auto boxed = last_boxed(text)) return clean(*boxed);
  constexpr std::string_view kMark = "####";
  if (const size_t at = text.rfind(kMark); at != std::string_view::npos) {
    std::string_view rest = trim(text.substr(at + kMark.size()));
    rest = rest.substr(0, rest.find('\n'));
    const std::string answer = clean(rest);
    return answer.empty() ? std::nullopt : std::optional(answer);
  }
  if (const auto number = last_number(text)) return clean(*number);
  return std::nullopt;
}

bool same_answer(const std::string& a, const std::string& b) {
  const auto x = decimal(a), y = decimal(b);
  return x && y ? *x == *y : a == b;
}

float reward(RewardType type, std::string_view response, std::string_view label) {
  if (type == RewardType::exact) return trim(response) == trim(label) ? 1.0f : 0.0f;
  const auto got = extract_answer(response);
  // A label without a number ("yes") is its own answer.
  const auto wanted = extract_answer(label);
  return got && same_answer(*got, wanted ? *wanted : clean(label)) ? 1.0f : 0.0f;
}

}  // namespace lockstep::recipes
