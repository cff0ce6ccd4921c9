#include "rl/reward/gsm8k.h"

#include <algorithm>
#include <string>

#include "rl/reward/extract.h"

namespace lockstep::rl {

namespace {

constexpr std::string_view kNumberMark = "#### ";
constexpr size_t kGsm8kCharacters = 300;  // characters

std::string without_commas(std::string_view text) {
  std::string plain(text);
  std::erase(plain, ',');
  return plain;
}

// Of the last match of "#### (-?[0-9.,]+)"; empty: there is none.
std::string last_number(std::string_view text) {
  for (size_t at = text.rfind(kNumberMark); at != std::string_view::npos;
       at = at == 0 ? at - 1 : text.rfind(kNumberMark, at - 1)) {
    const size_t begin = at + kNumberMark.size();
    const size_t digits = begin + (begin < text.size() && text[begin] == '-' ? 1 : 0);
    const size_t end = std::min(text.find_first_not_of("0123456789.,", digits), text.size());
    if (end > digits) return without_commas(text.substr(begin, end - begin));
  }
  return {};
}

}  // namespace

std::optional<std::string> gsm8k_answer(std::string_view response) {
  const std::string number = last_number(last_characters(response, kGsm8kCharacters));
  return number.empty() ? std::nullopt : std::optional(number);
}

double grade_gsm8k(std::string_view response, std::string_view label) {
  const std::optional<std::string> given = gsm8k_answer(response);
  const std::string wanted = without_commas(marked_answer(label).value_or(trimmed(label)));
  return given == wanted ? 1 : 0;
}

}  // namespace lockstep::rl
