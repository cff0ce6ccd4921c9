#include "rl/reward/extract.h"

namespace lockstep::rl {

namespace {

constexpr std::string_view kBoxed = "\\boxed", kMark = "####";

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::optional<std::string_view> braced(std::string_view text, size_t open) {
  if (open >= text.size() || text[open] != '{') return std::nullopt;
  size_t depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '{')
      ++depth;
    else if (text[i] == '}' && --depth == 0)
      return text.substr(open + 1, i - open - 1);
  }
  return std::nullopt;
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  const size_t at = text.rfind(kBoxed);
  return at == std::string_view::npos ? std::nullopt : braced(text, at + kBoxed.size());
}

std::optional<std::string_view> marked_answer(std::string_view text) {
  const size_t at = text.rfind(kMark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = trimmed(text.substr(at + kMark.size()));
  return trimmed(rest.substr(0, rest.find('\n')));
}

std::string_view last_characters(std::string_view text, size_t count) {
  size_t begin = text.size();
  while (begin > 0 && count > 0) {
    --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    --count;
  }
  return text.substr(begin);
}

std::string_view behind_thought(std::string_view text) {
  constexpr std::string_view kEnd = "</think>";
  const size_t at = text.rfind(kEnd);
  return at == std::string_view::npos ? text : text.substr(at + kEnd.size());
}

std::optional<std::string_view> label_answer(std::string_view label) {
  std::optional<std::string_view> answer = trimmed(label);
  if (label.find(kBoxed) != std::string_view::npos)
    answer = last_boxed(label);
  else if (const auto marked = marked_answer(label))
    answer = marked;
  return answer && !trimmed(*answer).empty() ? answer : std::nullopt;
}

}  // namespace lockstep::rl
