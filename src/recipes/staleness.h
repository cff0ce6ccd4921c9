// Which version of the actor a rollout samples with: a function of the rollout's number alone, so that timing never
// decides what is trained.
//   trained(r) = max(0, r - max_staleness)
//   rollout r samples with the version after trained(r) - trained(r) mod update_interval iterations of training
// AReaL, TRL and miles bound the age of samples as they arrive; here the bound is the rule.
#pragma once

#include <cstdint>

namespace lockstep::recipes {

struct StalenessRule {
  int64_t max_staleness = 0;    // iterations
  int64_t update_interval = 1;  // iterations between versions that are sampled with

  bool is_synchronous() const { return max_staleness == 0 && update_interval == 1; }
  // The iterations of training behind the version that this rollout samples with.
  int64_t iterations_behind(int64_t rollout) const {
    const int64_t trained = rollout > max_staleness ? rollout - max_staleness : 0;
    return trained - trained % update_interval;
  }
  // The most rollouts that are sampled before the one that is trained on is done.
  int64_t most_ahead() const { return max_staleness + update_interval - 1; }
  // How many versions of the actor must be held at once: each iteration publishes at most one, and the rollout in
  // training was sampled with the oldest.
  int64_t versions() const { return most_ahead() + 1; }
};

}  // namespace lockstep::recipes
