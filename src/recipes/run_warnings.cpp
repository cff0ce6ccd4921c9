#include "recipes/run_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

constexpr double kRewardShare = 0.5, kKlFloor = 0.1, kKlFactor = 10, kEntropyShare = 0.1;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

void push(std::vector<double>& window, double value) {
  if (window.size() == RunWarnings::kWindow) window.erase(window.begin());
  window.push_back(value);
}

// Returns whether the condition holds now and did not hold before.
bool begins(bool& state, bool now) {
  const bool before = state;
  state = now;
  return now && !before;
}

}  // namespace

std::vector<std::string> RunWarnings::add(const Rollout& rollout) {
  std::vector<std::string> warnings;
  if (rollout.reward) push(rewards_, *rollout.reward);
  if (rollout.reward && rewards_.size() == kWindow) {
    const double now = mean(rewards_);
    best_reward_ = std::max(best_reward_.value_or(now), now);
    if (begins(reward_low_, *best_reward_ > 0 && now < kRewardShare * *best_reward_))
      warnings.push_back(fmt::format(
          "reward collapse: {:.4g} is the mean of the last {} rollouts, {:.4g} was the best; an earlier checkpoint "
          "with a smaller learning rate or a KL to the reference may hold",
          now, kWindow, *best_reward_));
  }
  if (rollout.kl) {
    const bool high = kls_.size() == kWindow && *rollout.kl > kKlFloor && *rollout.kl > kKlFactor * median(kls_);
    if (begins(kl_high_, high))
      warnings.push_back(fmt::format(
          "KL explosion: {:.4g} to the reference, the median of the {} rollouts before is {:.4g}; a smaller learning "
          "rate or a larger KL coefficient may hold it",
          *rollout.kl, kWindow, median(kls_)));
    push(kls_, *rollout.kl);
  }
  if (entropies_.size() < kWindow) {
    entropies_.push_back(rollout.entropy);
  } else if (begins(entropy_low_, rollout.entropy < kEntropyShare * mean(entropies_))) {
    warnings.push_back(fmt::format(
        "entropy collapse: {:.4g}, the first {} rollouts had {:.4g}; samples of a group hardly differ any more; an "
        "entropy bonus, a higher upper clip or a higher temperature may hold it",
        rollout.entropy, kWindow, mean(entropies_)));
  }
  return warnings;
}

Json RunWarnings::json() const {
  return {{"rewards", rewards_},        {"kls", kls_},
          {"entropies", entropies_},    {"best_reward", best_reward_ ? Json(*best_reward_) : Json(nullptr)},
          {"reward_low", reward_low_},  {"kl_high", kl_high_},
          {"entropy_low", entropy_low_}};
}

RunWarnings RunWarnings::from(const Json& json, const std::string& where) {
  const JsonObject object(json, where);
  RunWarnings warnings;
  const auto numbers = [&](const char* key) {
    std::vector<double> values;
    const Json& list = object.value(key);
    if (!list.is_array() || list.size() > kWindow ||
        !std::ranges::all_of(list, [](const Json& value) { return value.is_number(); }))
      throw FormatError({.what = "not a list of numbers", .where = where + ": " + key, .got = list.dump()});
    for (const Json& value : list) values.push_back(value.get<double>());
    return values;
  };
  warnings.rewards_ = numbers("rewards");
  warnings.kls_ = numbers("kls");
  warnings.entropies_ = numbers("entropies");
  if (object.has("best_reward")) warnings.best_reward_ = object.number("best_reward");
  warnings.reward_low_ = object.boolean("reward_low", false);
  warnings.kl_high_ = object.boolean("kl_high", false);
  warnings.entropy_low_ = object.boolean("entropy_low", false);
  return warnings;
}

}  // namespace lockstep::recipes
