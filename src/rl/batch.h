// Trajectories become the rows of optimizer steps, in their order.
#pragma once

#include <span>
#include <vector>

#include "rl/trajectory.h"
#include "train/datum.h"

namespace lockstep::rl {

// Tokens, targets, weights (the mask) and sampled log-probs: row t is asked for token t + 1, so the first token of a
// response belongs to the last row of its prompt. Tokens that the policy chose have a target, also where the mask is 0.
// Weights are 0 where the reward is unknown. DataError as make_datum.
train::Datum make_datum(const Trajectory& trajectory);
std::vector<train::Datum> make_datums(std::span<const Trajectory> trajectories);

// The datums of optimizer step `step` of a rollout, whose number `batch_size` divides.
std::span<const train::Datum> step_batch(std::span<const train::Datum> datums, int64_t step, int64_t batch_size);

}  // namespace lockstep::rl
