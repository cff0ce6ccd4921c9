#include "rl/gate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "core/error.h"

namespace lockstep::rl {

namespace {

constexpr double kLeastStd = 1e-8;

size_t end_of_group(std::span<const Trajectory> trajectories, size_t first) {
  size_t end = first;
  while (end < trajectories.size() && trajectories[end].group == trajectories[first].group) ++end;
  return end;
}

// Moves the groups of a round that pass behind those that there are, until there are enough.
void take(std::vector<Trajectory>&& sampled, const GatePlan& plan, GatedRollout& gated, int64_t& passed) {
  for (size_t first = 0, end = 0; first < sampled.size(); first = end) {
    end = end_of_group(sampled, first);
    ++gated.report.sampled;
    if (passed == plan.groups) continue;
    ++gated.report.prompts_used;
    const auto group = std::span<const Trajectory>(sampled).subspan(first, end - first);
    gated.report.group_rewards.push_back(summarize(group).reward);
    const bool known = std::ranges::all_of(group, [](const Trajectory& one) { return one.reward.has_value(); });
    if ((plan.need_spread && !has_spread(group)) || (plan.need_rewards && !known)) {
      ++gated.report.dropped;
      continue;
    }
    for (size_t i = first; i < end; ++i) {
      sampled[i].group = passed;
      gated.rollout.trajectories.push_back(std::move(sampled[i]));
    }
    ++passed;
  }
}

}  // namespace

void throw_too_few_groups(const GatePlan& plan, const GateReport& report, int64_t passed) {
  throw DataError({.what = plan.need_spread ? "too few groups have rewards that differ"
                                            : "too few groups have rewards that are all known",
                   .where = "dynamic sampling",
                   .got = std::to_string(passed) + " of " + std::to_string(report.sampled) + " groups in " +
                          std::to_string(report.rounds) + " rounds",
                   .wanted = std::to_string(plan.groups) + " groups",
                   .attempt = "prompts that the model solves sometimes, more samples of each, or more rounds"});
}

bool has_spread(std::span<const Trajectory> group) {
  double sum = 0, squares = 0, known = 0;
  for (const Trajectory& trajectory : group)
    if (trajectory.reward) sum += static_cast<double>(*trajectory.reward), ++known;
  for (const Trajectory& trajectory : group)
    if (trajectory.reward) squares += std::pow(static_cast<double>(*trajectory.reward) - sum / known, 2);
  return known > 1 && std::sqrt(squares / known) > kLeastStd;
}

int64_t mask_truncated(std::span<Trajectory> trajectories) {
  int64_t masked = 0;
  for (Trajectory& trajectory : trajectories) {
    if (!trajectory.truncated) continue;
    std::ranges::fill(trajectory.mask, 0.0f);
    ++masked;
  }
  return masked;
}

GatedRollout gated_rollout(const GatePlan& plan, const std::function<Rollout(int64_t first, int64_t count)>& draw) {
  GatedRollout gated;
  RolloutReport last;
  double rollout_ms = 0, reward_ms = 0;
  int64_t unknown = 0;
  std::string failure;  // of the first of them
  for (int64_t passed = 0; passed < plan.groups;) {
    if (gated.report.rounds == plan.max_rounds) throw_too_few_groups(plan, gated.report, passed);
    Rollout round = draw(gated.report.rounds * plan.prompts, plan.prompts);
    ++gated.report.rounds;
    rollout_ms += round.report.rollout_ms;
    reward_ms += round.report.reward_ms;
    unknown += round.report.reward_unknown;
    if (failure.empty()) failure = round.report.reward_failure;
    last = std::move(round.report);
    take(std::move(round.trajectories), plan, gated, passed);
  }
  const bool whole = gated.report.rounds == 1 && gated.report.sampled == plan.groups;
  gated.rollout.report = whole ? std::move(last) : summarize(gated.rollout.trajectories);
  gated.rollout.report.rollout_ms = rollout_ms;
  gated.rollout.report.reward_ms = reward_ms;
  gated.rollout.report.reward_unknown = unknown;
  gated.rollout.report.reward_failure = std::move(failure);
  return gated;
}

}  // namespace lockstep::rl
