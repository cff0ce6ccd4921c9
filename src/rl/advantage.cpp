#include "rl/advantage.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace lockstep::rl {

std::vector<float> group_advantages(std::span<const float> rewards, const GroupAdvantage& how) {
  for (size_t i = 0; i < rewards.size(); ++i)
    if (!std::isfinite(rewards[i]))
      throw DataError({.what = "a reward is not a number",
                       .where = "sample " + std::to_string(i) + " of its group",
                       .got = std::to_string(rewards[i]),
                       .wanted = "a finite reward"});
  std::vector<float> advantages(rewards.begin(), rewards.end());
  if (!how.center || rewards.empty()) return advantages;

  const double n = static_cast<double>(rewards.size());
  double sum = 0;
  for (const float reward : rewards) sum += reward;
  const double mean = sum / n;
  double squares = 0;
  for (const float reward : rewards) squares += (reward - mean) * (reward - mean);
  // Compared as given: a mean that was rounded must not turn equal rewards into a spread.
  const bool equal = std::all_of(rewards.begin(), rewards.end(), [&](float reward) { return reward == rewards[0]; });
  const double scale = how.normalize_std && !equal ? 1.0 / (std::sqrt(squares / (n - 1)) + 1e-6) : 1.0;
  for (size_t i = 0; i < rewards.size(); ++i)
    advantages[i] = equal ? 0.0f : static_cast<float>((rewards[i] - mean) * scale);
  return advantages;
}

void set_advantages(std::span<train::Datum> datums, std::span<const Trajectory> trajectories,
                    std::span<const float> rewards, const GroupAdvantage& how) {
  for (size_t first = 0, end = 0; first < datums.size(); first = end) {
    while (end < datums.size() && trajectories[end].group == trajectories[first].group) ++end;
    const std::vector<float> advantages = group_advantages(rewards.subspan(first, end - first), how);
    for (size_t i = first; i < end; ++i) datums[i].advantages.assign(datums[i].tokens.size(), advantages[i - first]);
  }
}

}  // namespace lockstep::rl
