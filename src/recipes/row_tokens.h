// Rows of supervised and preference data as tokens with weights. Shapes and their targets (LossMaskType::automatic):
//   {"tokens", "loss_mask"}     what the mask says, 0 or 1
//   {"prompt", "completion"}    the completion; both strings, or both lists of messages
//   {"messages"}                the assistant's turns (text/loss_mask.h); "tools" and "chat_template_kwargs" beside it
//   {"text"}                    every token but the first
//   {"chosen", "rejected"}      the completions; "prompt" beside them, or what both begin with
// A sequence that has several shapes is the first of them. As TRL: strings get the tokenizer's own special tokens and
// end with the end token; prompt and completion are tokenized together, and the completion starts where that differs
// from the prompt alone (for a preference: where the first of its sides does).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "recipes/base.h"

namespace lockstep::recipes {

struct RowTokens {
  std::vector<int32_t> tokens;
  std::vector<float> weights;  // of each token as a target; the first is 0
  size_t prompt = 0;           // tokens that the row and its prompt alone begin with
  bool unaligned = false;      // the prompt alone has more
};

// Tokenizer and chat template come up with the first row that needs them.
class RowTokenizer {
 public:
  RowTokenizer(const Base& base, const RowOptions& options);
  ~RowTokenizer();

  // DataError saying what is wrong with the row; the caller says which row. FormatError, ConfigError: with the
  // tokenizer or the template.
  RowTokens sequence(const OrderedJson& row);
  std::array<RowTokens, 2> preference(const OrderedJson& row);  // chosen, rejected

 private:
  struct Tools;

  Tools& tools();
  RowTokens from_tokens(const OrderedJson& row) const;
  RowTokens from_text(const std::string& prompt, const std::string& completion);
  RowTokens from_messages(const OrderedJson& row, const OrderedJson& messages);
  RowTokens from_prompt(const OrderedJson& row, const OrderedJson& prompt, const OrderedJson& completion);

  const Base& base_;
  const RowOptions& options_;
  std::unique_ptr<Tools> tools_;
};

}  // namespace lockstep::recipes
