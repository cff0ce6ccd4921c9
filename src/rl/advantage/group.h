// Advantages of one group (rl/advantage.h has the formulas).
#pragma once

#include <span>
#include <vector>

#include "rl/advantage.h"

namespace lockstep::rl {

// The samples of one prompt whose rewards are known.
struct GroupRows {
  std::vector<const train::Datum*> datums;
  std::vector<const Trajectory*> trajectories;
  std::vector<float> rewards;
};

// What some estimators read of all rewards of a rollout.
struct BatchRewards {
  double std = 0, gpg_alpha = 1;
};
BatchRewards batch_rewards(std::span<const float> rewards, const GroupAdvantage& how);

void require_finite_rewards(std::span<const float> rewards);  // DataError

// One per sample. Of reinforce_plus_plus_baseline: the reward less the mean.
std::vector<float> sample_advantages(const GroupRows& group, const AdvantageOptions& how, const BatchRewards& batch);

}  // namespace lockstep::rl
