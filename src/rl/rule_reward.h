// Rewards by a rule that compares the text of a response with the label of its row.
#pragma once

#include "rl/reward.h"
#include "rl/reward/rule.h"

namespace lockstep::rl {

class RuleReward : public Reward {
 public:
  explicit RuleReward(const RewardRule& rule) : rule_(rule) {}

  // DataError for a label that has no answer to compare with (is_gradable).
  std::vector<float> grade(std::span<const Trajectory> trajectories) override;

 private:
  const RewardRule rule_;
};

}  // namespace lockstep::rl
