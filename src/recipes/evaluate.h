// Accuracy of a policy on held-out prompts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "recipes/prompts.h"
#include "recipes/run_log.h"

namespace lockstep::recipes {

struct EvalExample {
  std::string prompt, response, label;
  float reward = 0;
};

struct EvalResult {
  double accuracy = 0;                // mean reward
  double response_len = 0;            // tokens, mean
  std::vector<EvalExample> examples;  // the first sample of the first prompts
};

struct EvalRequest {
  const PromptSet* prompts = nullptr;
  rollout::SamplingParams sampling;
  int64_t samples = 1;
  RewardRule reward;
  int64_t num_examples = 3;
};

// The same request and policy give the same result: counters use rollout 2^32 - 1, which no training rollout has.
EvalResult evaluate(rollout::Sampler& sampler, const lora::PolicyId& policy, const text::Tokenizer& tokenizer,
                    const EvalRequest& request, RunLog& log, const Control& control);

// Text a reward sees: special tokens are left out, and so is a last token that ended the sample.
std::string response_text(const text::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          std::span<const int32_t> stop_token_ids);

}  // namespace lockstep::recipes
