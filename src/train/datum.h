// train: losses, the optimizer, and the Trainer whose one mutation is optim_step.
//
//   includes    core, kernels, lora, model, parallel; never rollout (they meet in a published version)
//   memory      the Trainer owns moments and gradient lanes; adapter weights are shared immutable buffers
//   threads     one Trainer is used by one thread; its ops run on its Stream
//
// This header: one training sequence. N rows: row t reads tokens[t] and is asked for targets[t].
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::train {

struct Datum {
  std::vector<int32_t> tokens;          // [N] inputs
  std::vector<int32_t> targets;         // [N] usually the next token; -1: nothing is asked of this row
  std::vector<float> weights;           // [N] loss weight of the row; 0 where targets is -1 or masked
  bool desirable = true;                // KTO: whether the completion is a wanted one
  std::vector<float> sampled_logprobs;  // [N] as the sampler reported them (RL), else empty
  std::vector<float> policy_logprobs;   // [N] the old ones of the ratio (RL), else empty
  std::vector<float> ref_logprobs;      // [N] of the reference policy, else empty
  std::vector<float> advantages;        // [N] (RL), else empty
  std::vector<float> values;            // [N] of a critic, of the tokens that the row was given (RL), else empty
  std::vector<float> returns;           // [N] what the critic learns, else empty
  std::vector<float> policy_weights;    // [N] factors of the policy-gradient term (corrections), else empty: 1
  std::vector<float> penalties;         // [N] factors of |log-prob - policy_logprobs|, else empty: 0
  std::vector<int32_t> candidates;      // [N * K] tokens that a teacher finds likely, else empty; -1: none
  std::vector<float> teacher_logprobs;  // [N * K] its log-probs of them, or without candidates [N] of the targets

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  double weight_sum() const;  // sum of weights, in order
  int64_t num_candidates() const { return tokens.empty() ? 0 : static_cast<int64_t>(candidates.size()) / size(); }
};

// tokens s_0..s_N and a mask of the same length (mask[t] = 1: s_t is a target) -> rows 0..N-1. Shared by SFT and RL.
Datum make_datum(const std::vector<int32_t>& tokens, const std::vector<float>& mask);

}  // namespace lockstep::train
