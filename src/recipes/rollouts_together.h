// Rollouts that are in flight at once, each trained on in its turn: their samples are drawn by the same steps of the
// engine, so that the last samples of one leave it nearly full. On the thread that trains: nothing is sampled
// meanwhile.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "recipes/rollout_sampling.h"

namespace lockstep::recipes {

// Whether the rollouts of these options are sampled together: ahead by the rule (recipes/staleness.h), by the engine of
// this process, and without gates, whose rounds decide where in the data the next rollout begins.
bool sampled_together(const RlOptions& options);

// The most sequences that are generated at once.
int64_t max_sequences(const RlOptions& options);

class RolloutsTogether {
 public:
  // `rows_begin`: of the first rollout. `sampling` has no gates and outlives it.
  RolloutsTogether(int64_t next_rollout, int64_t rows_begin, RolloutSampling& sampling);

  int64_t next() const { return next_; }  // the rollout that begin() begins
  // What rl::rl_submit throws.
  void begin(versions::Pin version);
  // The oldest rollout that was begun and not taken; the others go on meanwhile. What rl::rl_collect throws: nothing is
  // in flight then, and rollouts begin again with this one.
  SampledRollout take(const rl::Watch& watch);
  // Takes what has been graded while nobody waited. Over ranks they meet: Cancelled on all once one was asked to stop.
  void take_graded();
  // Waits until nothing is being graded, so that others may use sampler and reward before the next call.
  void rest(const rl::Watch& watch);

 private:
  RolloutSampling& sampling_;
  int64_t next_, rows_begin_;
  std::deque<SamplingJob> jobs_;
  std::vector<std::unique_ptr<rl::PendingRollout>> pending_;  // of these
};

}  // namespace lockstep::recipes
