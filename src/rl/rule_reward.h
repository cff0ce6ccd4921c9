// Rewards by a rule that compares the text of a response with the label of its row.
#pragma once

#include "rl/reward.h"
#include "rl/reward/rule.h"

namespace lockstep::rl {

// Grades while it is handed a sample: a verdict takes microseconds, and a hostile text at most a tenth of a second.
// A row whose rm_type names a rule is graded by that one, with the parameters of the run's. Unknown: a label that has
// no answer to compare with (is_gradable).
class RuleReward : public Reward {
 public:
  explicit RuleReward(const RewardRule& rule) : rule_(rule) {}

  Ticket submit(std::vector<RewardSample> samples) override;
  std::vector<Graded> poll(Deadline deadline) override;
  void cancel(Ticket ticket) override;

 private:
  Score score(const RewardSample& sample) const;

  const RewardRule rule_;
  Ticket next_ = 0;
  std::vector<Graded> graded_;
};

}  // namespace lockstep::rl
