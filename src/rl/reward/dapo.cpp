#include "rl/reward/dapo.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "rl/reward/extract.h"

namespace lockstep::rl {

namespace {

constexpr size_t kDapoCharacters = 300;  // characters

// What the verifier rewrites before it compares, in its order.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kRewritten = {{{"an ", ""},
                                                                                       {"a ", ""},
                                                                                       {".$", "$"},
                                                                                       {"\\$", ""},
                                                                                       {"\\ ", ""},
                                                                                       {" ", ""},
                                                                                       {"mbox", "text"},
                                                                                       {",\\text{and}", ","},
                                                                                       {"\\text{and}", ","},
                                                                                       {"\\text{m}", "\\text{}"}}};

// And what it takes away: units, and marks without a meaning.
constexpr std::string_view kRemoved[] = {"square",     "ways",       "integers",  "dollars",      "mph",
                                         "inches",     "hours",      "km",        "units",        "\\ldots",
                                         "sue",        "points",     "feet",      "minutes",      "digits",
                                         "cents",      "degrees",    "cm",        "gm",           "pounds",
                                         "meters",     "meals",      "edges",     "students",     "childrentickets",
                                         "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
                                         "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
                                         "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
                                         "\\dots"};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string::npos; begin = at + from.size())
    out.append(text, begin, at - begin).append(to);
  text = out.append(text, begin);
}

// \name{inside} becomes inside, to the first brace that closes.
void unwrap(std::string& text, std::string_view open) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(open, begin)) != std::string::npos;) {
    const size_t close = text.find('}', at);
    if (close == std::string::npos) break;
    out.append(text, begin, at - begin).append(text, at + open.size(), close - at - open.size());
    begin = close + 1;
  }
  text = out.append(text, begin);
}

// To the last brace that closes.
void unwrap_widest(std::string& text, std::string_view open) {
  const size_t at = text.find(open), close = text.rfind('}');
  if (at == std::string::npos || close == std::string::npos || close < at + open.size()) return;
  text = text.substr(0, at) + text.substr(at + open.size(), close - at - open.size()) + text.substr(close + 1);
}

bool only_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Rewriting of \frac and \sqrt is left out: no integer comes of it.
std::string normalized(std::string_view answer) {
  std::string text(answer.substr(answer.rfind('=') == std::string_view::npos ? 0 : answer.rfind('=') + 1));
  for (const auto& [from, to] : kRewritten) replace_all(text, from, to);
  for (const std::string_view expression : kRemoved) replace_all(text, expression, "");
  const size_t first = text.find('$');
  const size_t second = first == std::string::npos ? first : text.find('$', first + 1);
  if (second != std::string::npos) text = text.substr(first, second + 1 - first);
  for (const char* open : {"\\text{", "\\textbf{", "\\overline{"}) unwrap(text, open);
  unwrap_widest(text, "\\boxed{");
  replace_all(text, "$", "");
  std::string plain = text;
  replace_all(plain, ",", "");
  return std::string(trimmed(only_digits(plain) ? plain : text));
}

bool is_white(char c) {
  return std::string_view(" \t\n\v\f\r").find(c) != std::string_view::npos;
}

bool has_word(std::string_view text, size_t at, std::string_view word) {
  if (text.size() - at < word.size()) return false;
  for (size_t i = 0; i < word.size(); ++i)
    if ((text[at + i] | 0x20) != word[i]) return false;
  return true;
}

// What the last of the matches of (?i)answer\s*:\s*([^\n]+) caught.
std::optional<std::string_view> last_answer(std::string_view text) {
  constexpr std::string_view kWord = "answer";
  std::optional<std::string_view> found;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!has_word(text, at, kWord)) continue;
    size_t colon = at + kWord.size();
    while (colon < text.size() && is_white(text[colon])) ++colon;
    if (colon == text.size() || text[colon] != ':') continue;
    size_t begin = colon + 1;
    while (begin < text.size() && is_white(text[begin])) ++begin;
    if (begin < text.size()) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      found = text.substr(begin, end - begin);
      at = end;
    } else if (text.substr(colon + 1).find_first_not_of('\n') != std::string_view::npos) {
      found = std::string_view();  // only spaces, which are an answer all the same
    }
  }
  return found;
}

}  // namespace

std::optional<std::string> dapo_gold(std::string_view label) {
  const std::string text(trimmed(label));
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool decimal = text.find_first_of("xXpP") == std::string::npos;
  if (text.empty() || !decimal || end != text.c_str() + text.size() || !std::isfinite(number)) return std::nullopt;
  const std::string integer = fmt::format("{:.0f}", std::trunc(number));
  return integer == "-0" ? "0" : integer;
}

std::optional<std::string> dapo_answer(std::string_view response) {
  const std::optional<std::string_view> answer = last_answer(last_characters(response, kDapoCharacters));
  return answer ? std::optional(normalized(*answer)) : std::nullopt;
}

double grade_dapo(std::string_view response, const std::string& gold) {
  return dapo_answer(response) == gold ? 1 : -1;
}

}  // namespace lockstep::rl
