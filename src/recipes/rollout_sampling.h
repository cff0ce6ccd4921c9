// How one rollout is sampled: its prompts in the order of the data, its gates, and what is done to its samples before
// anybody trains on them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>

#include "recipes/options.h"
#include "recipes/prompt_order.h"
#include "recipes/prompts.h"
#include "recipes/sampled_rollout.h"
#include "rl/pending_rollout.h"

namespace lockstep::recipes {

// What a rollout is sampled with; `rows_begin`: its first row of the data.
struct SamplingJob {
  int64_t rollout = 0, rows_begin = 0;
  versions::Pin version = {};
};

// Applies RlOptions::log_passrate (computes pass rates) and mask_truncated (truncated samples get no gradient).
void judge_samples(SampledRollout& sampled, const RlOptions& options);

// For one thread at a time. It reads nothing that training changes.
class RolloutSampling {
 public:
  // `stop_token_ids`: the model's end tokens. All references outlive this; of `parts` those who sample and judge are
  // used. ConfigError as PromptOrder.
  RolloutSampling(const RlOptions& options, const PromptSet& prompts, std::span<const int32_t> stop_token_ids,
                  const rl::RlParts& parts);

  // Round after round, until enough groups pass the gates. What rl::gated_rollout and rl::rl_collect throw.
  SampledRollout sample(const SamplingJob& job, const rl::Watch& watch);
  // The same in halves, where there are no gates: the first asks the sampler. rl::rl_submit, rl::rl_collect.
  std::unique_ptr<rl::PendingRollout> begin(const SamplingJob& job);
  SampledRollout collect(const SamplingJob& job, std::unique_ptr<rl::PendingRollout> pending,
                         std::span<const std::unique_ptr<rl::PendingRollout>> beside, const rl::Watch& watch);

  PromptOrder& order() { return order_; }
  const rl::GatePlan& gates() const { return gate_plan_; }
  const rollout::SamplingParams& params() const { return params_; }
  rl::RlParts& parts() { return parts_; }

 private:
  // `times`: of each row so far; one that comes again in this rollout gets samples of its own.
  rl::RolloutRequest request(const SamplingJob& job, int64_t first, int64_t count, std::map<int64_t, int64_t>& times);
  SampledRollout judged(const SamplingJob& job, rl::GatedRollout gated);

  const RlOptions& options_;
  const PromptSet& prompts_;
  rl::RlParts parts_;
  PromptOrder order_;
  const rollout::SamplingParams params_;
  const rl::GatePlan gate_plan_;
};

}  // namespace lockstep::recipes
