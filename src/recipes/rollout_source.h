// Where the rollouts that a run trains on come from: sampled by a rule (rollouts_by_rule.h), as they arrive
// (arriving_rollouts.h), or out of a file (debug_dump.h).
#pragma once

#include <cstdint>
#include <set>

#include "core/json.h"
#include "recipes/sampled_rollout.h"

namespace lockstep::recipes {

class RolloutSource {
 public:
  RolloutSource() = default;
  virtual ~RolloutSource() = default;
  RolloutSource(const RolloutSource&) = delete;
  RolloutSource& operator=(const RolloutSource&) = delete;

  // Each rollout of the run once, in their order. Cancelled when interrupted: it can be asked for again.
  virtual SampledRollout next(int64_t rollout) = 0;
  // Stops sampling in the background until next() is called, so that an evaluation can use the sampler. Cancelled when
  // interrupted.
  virtual void rest() {}
  // Takes what has been graded meanwhile, so that a checkpoint holds it. Collective over ranks; Cancelled when
  // interrupted.
  virtual void take_graded() {}
  // The rollout was trained on: how many rows of the data it has read.
  virtual int64_t finish(const SampledRollout& sampled) = 0;
  // Sampling went on while the rollout before was trained on, so that the times of both overlap.
  virtual bool overlaps() const { return false; }
  // The versions of the actor that drew the samples which it keeps for rollouts to come.
  virtual std::set<int64_t> drawn_by() const { return {}; }
  // What its line of metrics.jsonl says beside what all rollouts have.
  virtual OrderedJson metrics() const { return OrderedJson::object(); }
};

}  // namespace lockstep::recipes
