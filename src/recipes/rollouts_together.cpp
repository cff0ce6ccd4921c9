#include "recipes/rollouts_together.h"

#include <utility>

namespace lockstep::recipes {

bool sampled_together(const RlOptions& options) {
  const bool gates = options.need_spread || options.on_reward_failure == rl::RewardFailure::drop_group ||
                     options.over_sampling > options.rollout_batch_size;
  return !options.staleness.is_synchronous() && !options.async.on && !options.engine.kind && !gates;
}

int64_t max_sequences(const RlOptions& options) {
  constexpr int64_t kOneRollout = 256, kTogether = 512;
  return options.max_sequences.value_or(sampled_together(options) ? kTogether : kOneRollout);
}

RolloutsTogether::RolloutsTogether(int64_t next_rollout, int64_t rows_begin, RolloutSampling& sampling)
    : sampling_(sampling), next_(next_rollout), rows_begin_(rows_begin) {}

void RolloutsTogether::begin(versions::Pin version) {
  SamplingJob job{.rollout = next_, .rows_begin = rows_begin_, .version = std::move(version)};
  pending_.push_back(sampling_.begin(job));
  jobs_.push_back(std::move(job));
  ++next_;
  rows_begin_ += sampling_.gates().prompts;
}

SampledRollout RolloutsTogether::take(const rl::Watch& watch) {
  const SamplingJob job = std::move(jobs_.front());
  jobs_.pop_front();
  std::unique_ptr<rl::PendingRollout> first = std::move(pending_.front());
  pending_.erase(pending_.begin());
  try {
    return sampling_.collect(job, std::move(first), pending_, watch);
  } catch (...) {
    pending_.clear();
    jobs_.clear();
    next_ = job.rollout;
    rows_begin_ = job.rows_begin;
    throw;
  }
}

void RolloutsTogether::take_graded() {
  rl::rl_take_graded(sampling_.parts(), pending_);
}

void RolloutsTogether::rest(const rl::Watch& watch) {
  rl::rl_finish_grading(sampling_.parts(), pending_, watch);
}

}  // namespace lockstep::recipes
