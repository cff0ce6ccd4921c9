#include "rl/objectives.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lockstep::rl {

namespace {

float part_of(const Trajectory& trajectory, const std::string& name) {
  for (const ScorePart& part : trajectory.reward_parts)
    if (part.name == name && part.value) return *part.value;
  throw DataError({.what = "a reward does not have the part that advantages are made of", .where = name});
}

}  // namespace

std::vector<float> normalized_sum(std::span<const Trajectory> trajectories, std::span<const Objective> objectives,
                                  const GroupAdvantage& how) {
  std::vector<double> sums(trajectories.size());
  std::vector<size_t> known;
  for (size_t first = 0, end = 0; first < trajectories.size(); first = end) {
    std::vector<size_t> group;
    for (; end < trajectories.size() && trajectories[end].group == trajectories[first].group; ++end)
      if (trajectories[end].reward) group.push_back(end);
    for (const Objective& objective : objectives) {
      std::vector<float> rewards;
      for (const size_t i : group) rewards.push_back(part_of(trajectories[i], objective.name));
      const std::vector<float> advantages = group_advantages(rewards, how);
      for (size_t j = 0; j < group.size(); ++j) sums[group[j]] += objective.weight * static_cast<double>(advantages[j]);
    }
    known.insert(known.end(), group.begin(), group.end());
  }
  std::vector<float> whitened(trajectories.size());
  if (known.size() < 2) return whitened;
  double mean = 0, squares = 0;
  for (const size_t i : known) mean += sums[i] / static_cast<double>(known.size());
  for (const size_t i : known) squares += (sums[i] - mean) * (sums[i] - mean);
  const double std = std::sqrt(squares / static_cast<double>(known.size() - 1));
  for (const size_t i : known) whitened[i] = static_cast<float>((sums[i] - mean) / (std + 1e-6));
  return whitened;
}

}  // namespace lockstep::rl
