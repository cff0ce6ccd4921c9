// Prompts of an RL run and of its evaluations: read, checked and tokenized once.
#pragma once

#include <string>
#include <vector>

#include "recipes/base.h"
#include "rollout/engine.h"
#include "text/dataset.h"

namespace lockstep::recipes {

struct PromptSet {
  std::vector<rollout::Prompt> prompts;  // row = index into the rows of the file or slice
  std::vector<std::string> texts, labels;
  int64_t dropped = 0;                 // longer than the limit
  std::vector<text::BadRow> bad_rows;  // left out, at most max_bad_rows
};

// Strings are taken as rendered. DataError (file, line, key) of the row after max_bad_rows others: a list of messages
// (chat templates are not built yet), an empty prompt, no label.
PromptSet read_prompts(const std::string& path, const std::string& input_key, const std::string& label_key,
                       const text::Tokenizer& tokenizer, int64_t max_prompt_len, int64_t max_bad_rows = 0);

}  // namespace lockstep::recipes
