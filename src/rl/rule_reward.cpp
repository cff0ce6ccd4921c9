#include "rl/rule_reward.h"

#include <utility>

namespace lockstep::rl {

Score RuleReward::score(const RewardSample& sample) const {
  RewardRule rule = rule_;
  if (const auto named = rule_of(sample.row->rm_type)) {
    rule.type = named->type;
    rule.boxed = named->boxed;
  }
  const std::optional<double> verdict = grade(rule, {.response = sample.response,
                                                     .label = sample.row->label,
                                                     .prompt = sample.row->prompt,
                                                     .length = std::ssize(sample.tokens),
                                                     .rollout = sample.rollout,
                                                     .group = sample.group,
                                                     .index = sample.index});
  return verdict ? Score::of(*verdict)
                 : Score::unknown("the label \"" + sample.row->label + "\" is not " + wanted_label(rule));
}

Reward::Ticket RuleReward::submit(std::vector<RewardSample> samples) {
  Graded graded{.ticket = next_++};
  for (const RewardSample& sample : samples) graded.scores.push_back(score(sample));
  graded_.push_back(std::move(graded));
  return graded_.back().ticket;
}

std::vector<Reward::Graded> RuleReward::poll(Deadline /*deadline*/) {
  return std::exchange(graded_, {});
}

void RuleReward::cancel(Ticket ticket) {
  std::erase_if(graded_, [ticket](const Graded& graded) { return graded.ticket == ticket; });
}

}  // namespace lockstep::rl
