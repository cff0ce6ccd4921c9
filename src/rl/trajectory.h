// rl: reinforcement learning, one stage per file, pure where it can be.
//
//   includes    core, net, data, text, lora, parallel, train, rollout, versions
//   memory      stages take and return values; a rollout's samples become trajectories, and these the trainer's datums
//   threads     the caller's
//
// This header: one sample of a rollout, and what is known of it before training looks at it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/reward.h"
#include "rollout/sample_groups.h"
#include "text/tokenizer.h"

namespace lockstep::rl {

struct Trajectory {
  int64_t group = 0;                     // samples of one prompt have one group, and lie side by side
  std::vector<int32_t> tokens;           // [T] prompt and response
  std::vector<float> mask;               // [T] 1: the policy chose this token, and learns from it
  std::vector<float> sampled_logprobs;   // [T] as the sampler reported them; 0 where the mask is 0
  std::vector<int64_t> versions;         // [T] of the policy that chose the token; kBase: none did
  std::string response;                  // its text, where the rollout has a tokenizer
  std::shared_ptr<const RewardRow> row;  // what its dataset row says to rewards
  int64_t index = 0;                     // of the samples of its prompt
  bool truncated = false;                // its response ended because it was long
  std::optional<float> reward;           // none: unknown, and nothing is learned from it
  float baseline = 0;                    // reward of a greedy sample of the same prompt, where the rollout has one
  std::vector<ScorePart> reward_parts;   // if the reward has named ones

  int64_t response_len() const;  // tokens that the policy chose and learns from
  // Whether the policy chose token t, also where it does not learn from it (a masked sample); false for a prompt's and
  // a tool's.
  bool chosen(size_t t) const { return mask[t] != 0 || versions[t] != lora::PolicyId::kBase; }
};

// What turns tokens into the text that a reward sees.
struct ResponseText {
  const text::Tokenizer* tokenizer = nullptr;  // none: no text
  std::span<const int32_t> stop_token_ids = {};
};

// Special tokens are left out, and so is a last token that ended the sample.
std::string response_text(const text::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          std::span<const int32_t> stop_token_ids);

// A sample behind its prompt; `row` is not null.
Trajectory make_trajectory(const rollout::Prompt& prompt, std::shared_ptr<const RewardRow> row,
                           const rollout::Sample& sample, const ResponseText& text);

// What a reward sees of it.
RewardSample reward_sample(const Trajectory& trajectory);

}  // namespace lockstep::rl
