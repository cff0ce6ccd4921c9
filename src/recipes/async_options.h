// Asynchronous by arrival: rollouts are made of the groups that have finished, whatever version of the adapter drew
// them. Their results depend on timing; recipes/staleness.h has the rule whose results do not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lockstep::recipes {

struct AsyncOptions {
  bool on = false;
  std::optional<int64_t> max_concurrent_samples;  // none: those of one rollout
  double buffer_factor = 2;                       // rollouts that are under way or wait to be trained on, at most
  // Iterations that the oldest token of a group may be behind when it is trained on, at most; none: any number.
  std::optional<int64_t> max_staleness;
  bool retry_stale = false;  // the prompts of groups that are too old are sampled again; else they are dropped
  // The old log-probs of the ratio are the trainer's at the start of the step (decoupled loss), else those that the
  // tokens were drawn with.
  bool recompute_policy = true;
};

// In groups.
struct ArrivalCounts {
  int64_t batch = 1;       // a rollout's
  int64_t trained = 0;     // iterations
  int64_t running = 0;     // under way
  int64_t ready = 0;       // finished, and not trained on
  int64_t taken = 0;       // of the rollout that is trained on now
  int64_t concurrent = 1;  // under way at most
};

// How many groups may be begun now:
//   min(concurrent - running,
//       buffer_factor batch - (ready + running),
//       (max_staleness + trained + 1) batch - (accepted + running))        accepted = trained batch + taken + ready
// The last term bounds how old samples are when they are trained on in the order of their beginning. Source: AReaL's
// staleness manager (arXiv 2505.24298, eq. 3); the second term is miles' data buffer. Groups that were dropped do not
// count.
inline int64_t arrival_capacity(const AsyncOptions& options, const ArrivalCounts& counts) {
  int64_t capacity = counts.concurrent - counts.running;
  const auto buffer = static_cast<int64_t>(options.buffer_factor * static_cast<double>(counts.batch));
  capacity = std::min(capacity, std::max(buffer, counts.batch) - (counts.ready + counts.running));
  if (options.max_staleness) {
    const int64_t accepted = counts.trained * counts.batch + counts.taken + counts.ready;
    capacity =
        std::min(capacity, (*options.max_staleness + counts.trained + 1) * counts.batch - (accepted + counts.running));
  }
  return std::max<int64_t>(capacity, 0);
}

}  // namespace lockstep::recipes
