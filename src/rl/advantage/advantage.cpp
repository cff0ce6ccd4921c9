#include "rl/advantage.h"

#include <cmath>

#include "rl/advantage/gae.h"
#include "rl/advantage/group.h"

namespace lockstep::rl {

namespace {

// From the last row that learns to the first; rows between turns are no steps of the process.
void set_returns(train::Datum& datum, double reward, double gamma, const RewardShaping& kl) {
  datum.advantages.assign(datum.tokens.size(), 0.0f);
  double later = 0, at_end = reward;
  for (size_t t = datum.weights.size(); t-- > 0;) {
    if (!(datum.weights[t] > 0)) continue;
    later = at_end - row_kl(datum, t, kl) + gamma * later;
    at_end = 0;
    datum.advantages[t] = static_cast<float>(later);
  }
}

void set_rows(train::Datum& datum, double advantage, const RewardShaping& kl) {
  datum.advantages.assign(datum.tokens.size(), 0.0f);
  for (size_t t = 0; t < datum.weights.size(); ++t)
    if (datum.weights[t] > 0) datum.advantages[t] = static_cast<float>(advantage - row_kl(datum, t, kl));
}

}  // namespace

const char* estimator_name(Estimator estimator) {
  switch (estimator) {
    case Estimator::grpo: return "grpo";
    case Estimator::dr_grpo: return "dr_grpo";
    case Estimator::rloo: return "rloo";
    case Estimator::max_rl: return "max_rl";
    case Estimator::opo: return "opo";
    case Estimator::remax: return "remax";
    case Estimator::gpg: return "gpg";
    case Estimator::pass_at_k: return "grpo_passk";
    case Estimator::reinforce_plus_plus: return "reinforce_plus_plus";
    case Estimator::reinforce_plus_plus_baseline: return "reinforce_plus_plus_baseline";
    case Estimator::ppo: return "ppo";
    case Estimator::on_policy_distillation: return "on_policy_distillation";
  }
  return "";
}

bool has_token_rewards(Estimator estimator) {
  return always_whitens(estimator) || estimator == Estimator::ppo;
}

bool always_whitens(Estimator estimator) {
  return estimator == Estimator::reinforce_plus_plus || estimator == Estimator::reinforce_plus_plus_baseline;
}

void whiten(std::span<train::Datum> datums) {
  double sum = 0, rows = 0, squares = 0;
  const auto each = [&](const auto& act) {
    for (train::Datum& datum : datums)
      for (size_t t = 0; t < datum.weights.size(); ++t)
        if (datum.weights[t] > 0) act(datum.advantages[t]);
  };
  each([&](float advantage) { sum += advantage, ++rows; });
  const double mean = sum / rows;
  each([&](float advantage) { squares += (advantage - mean) * (advantage - mean); });
  const double scale = 1.0 / std::sqrt(squares / (rows < 2 ? rows : rows - 1) + 1e-8);
  each([&](float& advantage) { advantage = static_cast<float>((advantage - mean) * scale); });
  for (train::Datum& datum : datums)
    for (size_t t = 0; t < datum.weights.size(); ++t)
      if (!(datum.weights[t] > 0)) datum.advantages[t] = 0;
}

void set_advantages(std::span<train::Datum> datums, std::span<const Trajectory> trajectories,
                    std::span<const float> rewards, const AdvantageOptions& how, const RewardShaping& kl) {
  std::vector<float> known;
  for (size_t i = 0; i < datums.size(); ++i)
    if (trajectories[i].reward) known.push_back(rewards[i]);
  const BatchRewards batch = batch_rewards(known, how.group);
  for (size_t first = 0, end = 0; first < datums.size(); first = end) {
    GroupRows group;
    std::vector<size_t> members;
    for (; end < datums.size() && trajectories[end].group == trajectories[first].group; ++end) {
      datums[end].advantages.assign(datums[end].tokens.size(), 0.0f);
      if (how.estimator == Estimator::ppo) datums[end].returns.assign(datums[end].tokens.size(), 0.0f);
      if (!trajectories[end].reward) continue;
      members.push_back(end);
      group.datums.push_back(&datums[end]);
      group.trajectories.push_back(&trajectories[end]);
      group.rewards.push_back(rewards[end]);
    }
    if (members.empty()) continue;
    if (how.estimator == Estimator::reinforce_plus_plus) {
      require_finite_rewards(group.rewards);
      for (const size_t i : members) set_returns(datums[i], rewards[i], how.gamma, kl);
      continue;
    }
    if (how.estimator == Estimator::ppo) {
      for (const size_t i : members) set_gae(datums[i], rewards[i], {how.gamma, how.lambda}, kl);
      continue;
    }
    const std::vector<float> advantages = sample_advantages(group, how, batch);
    for (size_t m = 0; m < members.size(); ++m) {
      train::Datum& datum = datums[members[m]];
      if (has_token_rewards(how.estimator))
        set_rows(datum, advantages[m], kl);
      else
        datum.advantages.assign(datum.tokens.size(), advantages[m]);
    }
  }
  if (how.whiten || always_whitens(how.estimator)) whiten(datums);
}

}  // namespace lockstep::rl
