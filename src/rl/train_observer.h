// Who looks at a rollout while it is trained on, and changes nothing of it.
#pragma once

#include <cstdint>
#include <span>

#include "train/datum.h"

namespace lockstep::rl {

// Both are called on the thread of rl_train. What they throw ends the training.
class TrainObserver {
 public:
  TrainObserver() = default;
  virtual ~TrainObserver() = default;
  TrainObserver(const TrainObserver&) = delete;
  TrainObserver& operator=(const TrainObserver&) = delete;

  // The datums of the rollout, with everything that the loss reads: log-probs, advantages, weights.
  virtual void prepared(std::span<const train::Datum> datums) = 0;
  // Rows of datum `sample` of the rollout as the loss read them, in the optimizer step that trains on it: row t is of
  // token t + 1. Rows of weight 0 hold 0; `entropy` is empty where the loss reads none.
  virtual void trained(int64_t sample, std::span<const float> logprob, std::span<const float> entropy) = 0;
};

}  // namespace lockstep::rl
