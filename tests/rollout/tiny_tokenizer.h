// Tokenizers of a few tokens without merges.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "text/tokenizer.h"

namespace lockstep::rollout::testing_models {

// A byte-level vocabulary without merges; the last entry may be a special token.
inline text::Tokenizer tokenizer(const std::vector<std::string>& tokens, const std::string& special = "") {
  Json vocab = Json::object(), added = Json::array();
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  if (!special.empty())
    added.push_back({{"id", vocab.size()},
                     {"content", special},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json file = {{"version", "1.0"},
                     {"added_tokens", added},
                     {"pre_tokenizer", byte_level},
                     {"decoder", byte_level},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  return text::Tokenizer::parse(file.dump(), "test");
}

// Token 0 is "aA", 1 is "aB", 10 is "bA".
inline std::vector<std::string> two_letter_spellings(int64_t vocab) {
  std::vector<std::string> spellings;
  for (int64_t i = 0; i < vocab; ++i)
    spellings.push_back({static_cast<char>('a' + i / 10), static_cast<char>('A' + i % 10)});
  return spellings;
}

}  // namespace lockstep::rollout::testing_models
