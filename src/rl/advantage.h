// Advantages from rewards.
#pragma once

#include <span>
#include <vector>

#include "rl/trajectory.h"
#include "train/datum.h"

namespace lockstep::rl {

// GRPO: rewards of one prompt's samples -> (r - mean) / (std + 1e-6), std unbiased; only centered without
// normalize_std, if the group has one sample, or if all rewards are equal. Source: arXiv 2402.03300 section 4.1;
// constants as in slime.
struct GroupAdvantage {
  bool center = true;  // without it an advantage is the reward, whatever normalize_std says
  bool normalize_std = true;
};

// Of one group. DataError for a reward that is not finite.
std::vector<float> group_advantages(std::span<const float> rewards, const GroupAdvantage& how);

// Sets advantages of each datum, the same for all its rows. Reward i is of trajectory i and datum i.
void set_advantages(std::span<train::Datum> datums, std::span<const Trajectory> trajectories,
                    std::span<const float> rewards, const GroupAdvantage& how);

}  // namespace lockstep::rl
