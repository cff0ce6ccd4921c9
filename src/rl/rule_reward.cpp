#include "rl/rule_reward.h"

#include "core/error.h"

namespace lockstep::rl {

std::vector<float> RuleReward::grade(std::span<const Trajectory> trajectories) {
  std::vector<float> rewards;
  for (const Trajectory& trajectory : trajectories) {
    const std::optional<float> reward = rl::grade(rule_, trajectory.response, trajectory.label);
    if (!reward)
      throw DataError({.what = "the label has no answer to compare with",
                       .where = "prompt " + std::to_string(trajectory.group) + " of the rollout",
                       .got = "\"" + trajectory.label + "\"",
                       .wanted = "a text, or one in \\boxed{} or behind ####"});
    rewards.push_back(*reward);
  }
  return rewards;
}

}  // namespace lockstep::rl
