#include "rl/reward/f1.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::rl {

namespace {

bool ends_word(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty() && word != "a" && word != "an" && word != "the") words.push_back(word);
    word.clear();
  };
  for (const char c : text) {
    if (ends_word(c))
      end_word();
    else if (std::ispunct(static_cast<unsigned char>(c)) == 0)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  end_word();
  return words;
}

bool is_verdict(const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 3> kVerdicts = {"yes", "no", "noanswer"};
  return words.size() == 1 && std::ranges::find(kVerdicts, words[0]) != kVerdicts.end();
}

}  // namespace

double grade_f1(std::string_view response, std::string_view label) {
  const std::vector<std::string> given = words_of(response), wanted = words_of(label);
  if ((is_verdict(given) || is_verdict(wanted)) && given != wanted) return 0;
  std::unordered_map<std::string_view, int64_t> left;
  for (const std::string& word : wanted) ++left[word];
  int64_t common = 0;
  for (const std::string& word : given) {
    const auto found = left.find(word);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(given.size());
  const double recall = static_cast<double>(common) / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace lockstep::rl
