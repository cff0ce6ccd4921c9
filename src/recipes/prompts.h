// Prompts of an RL run and of its evaluations: read, checked and tokenized once.
#pragma once

#include <string>
#include <vector>

#include "recipes/base.h"
#include "recipes/chat.h"
#include "rollout/engine.h"

namespace lockstep::recipes {

struct PromptSet {
  std::vector<rollout::Prompt> prompts;  // row = index into the file's rows
  std::vector<std::string> texts, labels;
  int64_t dropped = 0;  // longer than the limit
};

// DataError (file, line, key): what `chat` cannot render, an empty prompt, no label.
PromptSet read_prompts(const std::string& path, const std::string& input_key, const std::string& label_key,
                       const text::Tokenizer& tokenizer, int64_t max_prompt_len, const PromptRenderer& chat);

}  // namespace lockstep::recipes
