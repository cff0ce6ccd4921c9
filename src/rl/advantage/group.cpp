// Advantages that a sample's rows share.
#include "rl/advantage/group.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace lockstep::rl {

namespace {

double mean_of(std::span<const float> rewards) {
  double sum = 0;
  for (const float reward : rewards) sum += reward;
  return sum / static_cast<double>(rewards.size());
}

double std_of(std::span<const float> rewards, bool population) {
  const double mean = mean_of(rewards), n = static_cast<double>(rewards.size());
  double squares = 0;
  for (const float reward : rewards) squares += (reward - mean) * (reward - mean);
  return std::sqrt(squares / (population ? n : n - 1));
}

// Compared as given: a mean that was rounded must not turn equal rewards into a spread.
bool all_equal(std::span<const float> rewards) {
  return std::ranges::all_of(rewards, [&](float reward) { return reward == rewards[0]; });
}

std::vector<float> scaled(std::span<const float> rewards, double baseline, double scale) {
  std::vector<float> advantages;
  for (const float reward : rewards) advantages.push_back(static_cast<float>((reward - baseline) * scale));
  return advantages;
}

std::vector<float> centered(std::span<const float> rewards, const GroupAdvantage& how, double std) {
  if (!how.center || rewards.empty()) return {rewards.begin(), rewards.end()};
  if (all_equal(rewards)) return std::vector<float>(rewards.size(), 0.0f);
  return scaled(rewards, mean_of(rewards), how.normalize_std ? 1.0 / (std + how.eps) : 1.0);
}

// Over whole lengths, whether the tokens are learned from or not.
double weighted_baseline(const GroupRows& group) {
  double sum = 0, length = 0;
  for (size_t i = 0; i < group.rewards.size(); ++i) {
    const auto rows = static_cast<double>(
        std::ranges::count_if(group.datums[i]->targets, [](int32_t target) { return target >= 0; }));
    sum += rows * group.rewards[i];
    length += rows;
  }
  return length > 0 ? sum / length : 0;
}

std::vector<float> best_only(std::span<const float> rewards, const GroupAdvantage& how, double std) {
  std::vector<float> advantages(rewards.size(), 0.0f);
  if (rewards.size() < 2 || all_equal(rewards)) return advantages;
  std::vector<float> sorted(rewards.begin(), rewards.end());
  std::ranges::sort(sorted, std::ranges::greater());
  const double lead = static_cast<double>(sorted[0]) - sorted[1];
  const auto best = static_cast<size_t>(std::ranges::max_element(rewards) - rewards.begin());
  advantages[best] = static_cast<float>(how.normalize_std ? lead / (std + how.eps) : lead);
  return advantages;
}

std::vector<float> less_greedy(const GroupRows& group) {
  std::vector<float> advantages;
  for (size_t i = 0; i < group.rewards.size(); ++i)
    advantages.push_back(static_cast<float>(static_cast<double>(group.rewards[i]) - group.trajectories[i]->baseline));
  return advantages;
}

// Over the mean, which MaxRL divides by.
std::vector<float> relative(std::span<const float> rewards) {
  const double mean = mean_of(rewards);
  if (mean == 0 || all_equal(rewards)) return std::vector<float>(rewards.size(), 0.0f);
  return scaled(rewards, mean, 1.0 / mean);
}

}  // namespace

void require_finite_rewards(std::span<const float> rewards) {
  for (size_t i = 0; i < rewards.size(); ++i)
    if (!std::isfinite(rewards[i]))
      throw DataError({.what = "a reward is not a number",
                       .where = "sample " + std::to_string(i) + " of its group",
                       .got = std::to_string(rewards[i]),
                       .wanted = "a finite reward"});
}

std::vector<float> group_advantages(std::span<const float> rewards, const GroupAdvantage& how) {
  require_finite_rewards(rewards);
  return centered(rewards, how, rewards.size() > 1 ? std_of(rewards, how.population_std) : 0);
}

BatchRewards batch_rewards(std::span<const float> rewards, const GroupAdvantage& how) {
  const auto nonzero = std::ranges::count_if(rewards, [](float reward) { return reward != 0; });
  return {.std = rewards.size() > 1 ? std_of(rewards, how.population_std) : 0,
          .gpg_alpha = static_cast<double>(rewards.size()) / static_cast<double>(std::max<int64_t>(nonzero, 1))};
}

std::vector<float> sample_advantages(const GroupRows& group, const AdvantageOptions& how, const BatchRewards& batch) {
  const std::span<const float> rewards = group.rewards;
  require_finite_rewards(rewards);
  const auto n = static_cast<double>(rewards.size());
  const bool alone = rewards.size() == 1;
  const double std = how.group.spread == Spread::batch ? batch.std
                     : alone                           ? 0
                                                       : std_of(rewards, how.group.population_std);
  GroupAdvantage center_only = how.group;
  center_only.normalize_std = false;
  switch (how.estimator) {
    case Estimator::rloo: return alone ? scaled(rewards, 0, 1) : scaled(rewards, mean_of(rewards), n / (n - 1));
    case Estimator::max_rl: return relative(rewards);
    case Estimator::opo: return scaled(rewards, alone ? 0 : weighted_baseline(group), 1);
    case Estimator::remax: return less_greedy(group);
    case Estimator::gpg: return scaled(rewards, alone ? 0 : mean_of(rewards), batch.gpg_alpha);
    case Estimator::pass_at_k: return best_only(rewards, how.group, std);
    case Estimator::on_policy_distillation: return std::vector<float>(rewards.size(), 0.0f);
    case Estimator::grpo: return centered(rewards, how.group, std);
    default: return centered(rewards, center_only, std);
  }
}

}  // namespace lockstep::rl
