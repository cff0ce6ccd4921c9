// One sample of a rollout as a line of JSON that people and programs read. Floats read back exactly.
//
//   step, group, index      of the run's steps (the first is 1), of the rollout's prompts, of the prompt's samples
//   prompt, label           texts of the dataset row
//   response                text, without special tokens
//   reward, rewards         null: unknown; parts of the reward by name, where it has any
//   truncated               the response ended because it was long
//   prompt_tokens, tokens   ids of the prompt and of the response
//   pieces                  text of each token of the response, special ones included; together they are the response
//   version                 of the policy that sampled; `versions`, one per token, where they differ
//   advantage               that the loss read; `advantages`, one per token, where they differ
//   sampled_logprobs        one per token, as the sampler reported them
//   policy_logprobs         of the policy before the rollout's first step (the old ones of the ratio)
//   ref_logprobs            of the reference, where the run has one
//   train_logprobs, entropy of the optimizer step that trained on the sample; null where its loss does not read the
//   token
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rl/trajectory.h"
#include "train/datum.h"

namespace lockstep::recipes {

// What training made of a sample, in rows of its datum: row t is of token t + 1. A list may be empty (not known), and a
// value may be NaN.
struct TrainedRows {
  std::vector<float> policy_logprobs, ref_logprobs, advantages;
  std::vector<float> train_logprobs, entropy;
};

// The position of the first token of the response.
size_t response_begin(const rl::Trajectory& trajectory);

// Without the end of the line. `tokenizer` none: no pieces.
std::string sample_line(int64_t step, const rl::Trajectory& trajectory, const TrainedRows& rows,
                        const text::Tokenizer* tokenizer);

// Appends the shortest text that reads back as the same float, by a reader of doubles too; null for what is not finite.
void append_exact_float(std::string& out, float value);

}  // namespace lockstep::recipes
