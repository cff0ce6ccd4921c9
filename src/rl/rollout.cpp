#include "rl/rollout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep::rl {

namespace {

void add_part(std::vector<std::pair<RewardPartMean, int64_t>>& sums, const ScorePart& part) {
  auto found = std::ranges::find(sums, part.name, [](const auto& sum) { return sum.first.name; });
  if (found == sums.end()) found = sums.insert(sums.end(), {{.name = part.name}, 0});
  if (!part.value) return;
  found->first.mean += static_cast<double>(*part.value);
  ++found->second;
}

void summarize_rewards(RolloutReport& report, std::span<const Trajectory> trajectories) {
  double sum = 0;
  std::vector<std::pair<RewardPartMean, int64_t>> parts;
  for (const Trajectory& trajectory : trajectories) {
    if (trajectory.reward)
      sum += static_cast<double>(*trajectory.reward);
    else
      ++report.reward_unknown;
    for (const ScorePart& part : trajectory.reward_parts) add_part(parts, part);
  }
  const int64_t known = static_cast<int64_t>(trajectories.size()) - report.reward_unknown;
  if (known > 0) report.reward = sum / static_cast<double>(known);
  for (auto& [part, count] : parts) {
    if (count == 0) continue;
    part.mean /= static_cast<double>(count);
    report.reward_parts.push_back(std::move(part));
  }
}

}  // namespace

RolloutReport summarize(std::span<const Trajectory> trajectories) {
  RolloutReport report;
  report.version = trajectories.front().versions.back();
  for (const Trajectory& trajectory : trajectories) {
    report.response_len += static_cast<double>(trajectory.response_len());
    report.tokens += static_cast<int64_t>(trajectory.tokens.size()) - 1;
    for (size_t t = 0; t < trajectory.versions.size(); ++t)
      if (trajectory.mask[t] != 0) report.version = std::min(report.version, trajectory.versions[t]);
  }
  report.response_len /= static_cast<double>(trajectories.size());
  summarize_rewards(report, trajectories);
  return report;
}

void UnknownRewards::add(std::span<const GradedSample> group, uint32_t row) {
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].score.value) continue;
    if (++count == 1)
      failure =
          "row " + std::to_string(row) + " of the data, sample " + std::to_string(i) + ": " + group[i].score.failure;
  }
}

void UnknownRewards::write_to(RolloutReport& report) const {
  report.reward_unknown = count;
  report.reward_failure = failure;
}

void Watch::stop_if_interrupted() const {
  if (interrupted && interrupted()) throw Cancelled({.what = "interrupted"});
}

}  // namespace lockstep::rl
