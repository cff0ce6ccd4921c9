// Prompts of an RL run and of its evaluations: read, checked and tokenized once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "recipes/base.h"
#include "recipes/chat.h"
#include "rl/reward_config.h"
#include "rollout/sample_groups.h"

namespace lockstep::recipes {

struct PromptSet {
  std::vector<rollout::Prompt> prompts;                    // row = index into the rows of the file or slice
  std::vector<std::shared_ptr<const rl::RewardRow>> rows;  // one per prompt
  int64_t dropped = 0;                                     // longer than the limit
  std::vector<data::BadRow> bad_rows;                      // left out, at most max_bad_rows

  // " (2 too long, dropped)"; empty: none was dropped.
  std::string dropped_text() const;
  // SHA-256 of tokens and labels: whether a resumed run has the same.
  std::string digest() const;
};

struct PromptSource {
  std::string path, input_key, label_key;  // no label key: no labels
  std::string metadata_key = "metadata";   // of an object whose rm_type, if there is one, is the row's reward
  rl::RewardConfig reward;                 // that of the other rows
  int64_t max_length = 0;                  // tokens of a prompt; longer ones are dropped with a count
  std::string max_length_option = {};      // that sets it, for messages; empty: the context does
  int64_t vocab_size = 0;                  // of the model
  PromptRenderer chat;                     // none: strings only
  int64_t max_bad_rows = 0;
  OrderedJson metadata = {};     // goes before what a row's metadata have; an object or null
  std::string teacher_key = {};  // member of a row's metadata that names its teacher; empty: none is read
};

// DataError (file, line, key) of the row after max_bad_rows others: what `chat` cannot render, an empty prompt, a token
// that the model does not have, no label, one without an answer, a row whose metadata asks for a reward that is no
// rule.
PromptSet read_prompts(const PromptSource& source, const text::Tokenizer& tokenizer);

// What rewards read of a row: prompt and label are given, the rest is the row's own.
//   rm_type  the rule that its metadata names, as slime reads it; else the run's, if that is one rule
//   json     the whole row, if the run's rewards read rows
// DataError: metadata that name no rule, or another reward than that of a run that has more than a rule (a function of
// Python goes before them, as in slime).
std::shared_ptr<const rl::RewardRow> reward_row(const rl::RewardConfig& run, const data::Dataset& data,
                                                const data::Row& row, const std::string& metadata_key,
                                                rl::RewardRow given);

// Whether rows must have labels for this reward.
bool needs_labels(const rl::RewardConfig& run);

}  // namespace lockstep::recipes
