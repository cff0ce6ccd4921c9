// Prompts of an RL run and of its evaluations: read, checked and tokenized once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "recipes/base.h"
#include "recipes/chat.h"
#include "rl/reward.h"
#include "rollout/sample_groups.h"

namespace lockstep::recipes {

struct PromptSet {
  std::vector<rollout::Prompt> prompts;                    // row = index into the rows of the file or slice
  std::vector<std::shared_ptr<const rl::RewardRow>> rows;  // one per prompt
  int64_t dropped = 0;                                     // longer than the limit
  std::vector<data::BadRow> bad_rows;                      // left out, at most max_bad_rows

  // SHA-256 of tokens and labels: whether a resumed run has the same.
  std::string digest() const;
};

struct PromptSource {
  std::string path, input_key, label_key;  // no label key: no labels
  std::string metadata_key = "metadata";   // of an object whose rm_type, if there is one, is the row's reward
  rl::RewardRule reward;                   // that of the other rows
  int64_t max_length = 0;                  // tokens of a prompt; longer ones are dropped with a count
  int64_t vocab_size = 0;                  // of the model
  PromptRenderer chat;                     // none: strings only
  int64_t max_bad_rows = 0;
};

// DataError (file, line, key) of the row after max_bad_rows others: what `chat` cannot render, an empty prompt, a token
// that the model does not have, no label, one without an answer, a row whose metadata asks for a reward that is no
// rule.
PromptSet read_prompts(const PromptSource& source, const text::Tokenizer& tokenizer);

// The rule that a row's metadata names as its rm_type, as slime reads it, with the run's parameters; else the run's.
// DataError: a name that is no rule's.
rl::RewardRule rule_of_row(const rl::RewardRule& run, const data::Dataset& data, const data::Row& row,
                           const std::string& metadata_key);

}  // namespace lockstep::recipes
