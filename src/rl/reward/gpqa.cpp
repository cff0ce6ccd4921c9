#include "rl/reward/gpqa.h"

#include <array>
#include <cctype>
#include <string>

#include "rl/reward/extract.h"

namespace lockstep::rl {

namespace {

constexpr char kLast = 'J';

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

bool stands_alone(std::string_view text, size_t at, size_t size) {
  return (at == 0 || !is_word(text[at - 1])) && (at + size >= text.size() || !is_word(text[at + size]));
}

char choice_of(char c) {
  const char upper = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper >= 'A' && upper <= kLast ? upper : '\0';
}

// "a bit", "I think": a word of the sentence, not a choice.
bool begins_words(std::string_view text, size_t at) {
  size_t next = at + 1;
  while (next < text.size() && text[next] == ' ') ++next;
  return next > at + 1 && next < text.size() && std::islower(static_cast<unsigned char>(text[next])) != 0;
}

// A choice with brackets, stars and the like around it, and nothing else.
std::optional<char> only_choice(std::string_view text) {
  std::optional<char> choice;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_word(text[i])) continue;
    if (choice || choice_of(text[i]) == '\0' || !stands_alone(text, i, 1)) return std::nullopt;
    choice = choice_of(text[i]);
  }
  return choice;
}

// What may stand between "answer" and its letter.
size_t behind_filling(std::string_view text, size_t at) {
  constexpr std::string_view kMarks = " \t\r\n:*($[{\"'\\";
  constexpr std::array<std::string_view, 2> kWords = {"is", "text"};
  for (size_t before = at + 1; before != at;) {
    before = at;
    while (at < text.size() && kMarks.find(text[at]) != std::string_view::npos) ++at;
    for (const std::string_view word : kWords)
      if (text.substr(at, word.size()) == word && stands_alone(text, at, word.size())) at += word.size();
  }
  return at;
}

std::optional<char> named_choice(std::string_view text, const std::string& small) {
  std::optional<char> choice;
  for (size_t at = 0; at < small.size(); ++at)
    for (const std::string_view word : {"answer", "option", "choice"}) {
      if (small.compare(at, word.size(), word) != 0 || !stands_alone(small, at, word.size())) continue;
      const size_t letter = behind_filling(small, at + word.size());
      if (letter < text.size() && choice_of(text[letter]) != '\0' && stands_alone(text, letter, 1) &&
          !begins_words(text, letter) && letter > at + word.size())
        choice = choice_of(text[letter]);
    }
  return choice;
}

std::optional<char> last_capital(std::string_view text) {
  for (size_t i = text.size(); i-- > 0;)
    if (text[i] >= 'A' && text[i] <= kLast && stands_alone(text, i, 1) && !begins_words(text, i)) return text[i];
  return std::nullopt;
}

}  // namespace

std::optional<char> choice_label(std::string_view label) {
  const auto answer = label_answer(label);
  return answer ? only_choice(*answer) : std::nullopt;
}

std::optional<char> gpqa_choice(std::string_view response) {
  const std::string_view text = behind_thought(response);
  const auto boxed = last_boxed(text);
  std::optional<char> choice = boxed ? only_choice(*boxed) : std::nullopt;
  if (!choice) {
    std::string small(text);
    for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    choice = named_choice(text, small);
  }
  return choice ? choice : last_capital(text);
}

double grade_gpqa(std::string_view response, char gold) {
  return gpqa_choice(response) == gold ? 1 : 0;
}

}  // namespace lockstep::rl
