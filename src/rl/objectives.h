// Advantages of several rewards that are normalized one by one. The objectives of the policy loss: train/policy_loss.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rl/advantage.h"

namespace lockstep::rl {

struct Objective {
  std::string name;  // of a part of the rewards
  double weight = 1;
};

// S_i = sum_k weight_k A_k,i with A_k the group_advantages of part k; then (S - mean S) / (std S + 1e-6) over all
// trajectories, std unbiased. 0 where a trajectory's reward is unknown, which is in no mean. DataError: a part that a
// known reward does not have. Source: GDPO, as TRL's normalize_then_sum, whose epsilon is 1e-4.
std::vector<float> normalized_sum(std::span<const Trajectory> trajectories, std::span<const Objective> objectives,
                                  const GroupAdvantage& how);

}  // namespace lockstep::rl
