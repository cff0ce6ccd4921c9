// Accuracy of a policy on held-out prompts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recipes/prompts.h"
#include "recipes/run_log.h"
#include "rl/pass_rate.h"
#include "rl/reward.h"
#include "rl/reward/rule.h"

namespace lockstep::recipes {

struct EvalExample {
  std::string prompt, response, label;
  std::optional<float> reward;
};

struct EvalResult {
  std::optional<double> accuracy;        // mean of the known rewards; none: all are unknown
  int64_t unknown = 0;                   // rewards
  std::string failure;                   // why the first of these is unknown
  double response_len = 0;               // tokens, mean
  std::vector<rl::PassRate> pass_rates;  // (rl/pass_rate.h)
  std::optional<double> majority;        // maj@n (rl/majority.h); none: the reward is no rule that reads answers
  std::vector<EvalExample> examples;     // the first sample of the first prompts
};

// "accuracy 0.5000", with the number of unknown rewards if there are any and why the first one is.
std::string accuracy_text(const EvalResult& result);

struct EvalRequest {
  const PromptSet* prompts = nullptr;
  rollout::SamplingParams sampling;
  int64_t samples = 1;
  rl::Reward* reward = nullptr;
  const rl::RewardRule* rule = nullptr;  // of rows that name no other; null: the reward is no rule
  int64_t num_examples = 3;
};

// The same request and policy give the same result: counters use rollout 2^32 - 1, which no training rollout has.
EvalResult evaluate(rollout::Sampler& sampler, const lora::PolicyId& policy, const text::Tokenizer& tokenizer,
                    const EvalRequest& request, RunLog& log, const Control& control);

}  // namespace lockstep::recipes
