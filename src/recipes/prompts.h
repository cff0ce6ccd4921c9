// Prompts of an RL run and of its evaluations: read, checked and tokenized once.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"
#include "recipes/base.h"
#include "recipes/chat.h"
#include "rollout/sample_groups.h"

namespace lockstep::recipes {

struct PromptSet {
  std::vector<rollout::Prompt> prompts;  // row = index into the rows of the file or slice
  std::vector<std::string> texts, labels;
  int64_t dropped = 0;                 // longer than the limit
  std::vector<data::BadRow> bad_rows;  // left out, at most max_bad_rows

  // SHA-256 of tokens and labels: whether a resumed run has the same.
  std::string digest() const;
};

struct PromptSource {
  std::string path, input_key, label_key;  // no label key: no labels
  std::string metadata_key = "metadata";   // of an object whose rm_type, if there is one, must name the reward
  rl::RewardRule reward;                   // what the labels are for
  int64_t max_length = 0;                  // tokens of a prompt; longer ones are dropped with a count
  int64_t vocab_size = 0;                  // of the model
  PromptRenderer chat;                     // none: strings only
  int64_t max_bad_rows = 0;
};

// DataError (file, line, key) of the row after max_bad_rows others: what `chat` cannot render, an empty prompt, a token
// that the model does not have, no label, one without an answer, a row whose metadata asks for another
// reward.
PromptSet read_prompts(const PromptSource& source, const text::Tokenizer& tokenizer);

}  // namespace lockstep::recipes
