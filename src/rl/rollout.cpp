#include "rl/rollout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep::rl {

namespace {

RolloutReport summary(std::span<const Trajectory> trajectories) {
  RolloutReport report;
  report.version = trajectories.front().versions.back();
  for (const Trajectory& trajectory : trajectories) {
    report.reward += trajectory.reward;
    report.response_len += static_cast<double>(trajectory.response_len());
    report.tokens += static_cast<int64_t>(trajectory.tokens.size()) - 1;
    for (size_t t = 0; t < trajectory.versions.size(); ++t)
      if (trajectory.mask[t] != 0) report.version = std::min(report.version, trajectory.versions[t]);
  }
  report.reward /= static_cast<double>(trajectories.size());
  report.response_len /= static_cast<double>(trajectories.size());
  return report;
}

}  // namespace

void Watch::stop_if_interrupted() const {
  if (interrupted && interrupted()) throw Cancelled({.what = "interrupted"});
}

PendingRollout rl_submit(RlParts& parts, RolloutRequest request) {
  const Stopwatch since;
  rollout::GroupTickets tickets =
      rollout::submit_groups(parts.sampler, request.prompts, request.params, request.policy);
  return {std::move(request), std::move(tickets), since};
}

Rollout rl_collect(RlParts& parts, const PendingRollout& pending, const Watch& watch) {
  const RolloutRequest& request = pending.request;
  const std::vector<rollout::Sample> samples =
      rollout::collect_groups(parts.sampler, pending.tickets, [&](int64_t done, int64_t of) {
        watch.stop_if_interrupted();
        watch.report(done, of);
      });
  const double rollout_ms = pending.since.ms();

  const Stopwatch judging;
  Rollout rollout;
  rollout.trajectories =
      make_trajectories(request.prompts, request.labels, samples,
                        {.tokenizer = parts.tokenizer, .stop_token_ids = request.params.sampling.stop_token_ids});
  const std::vector<float> rewards = parts.reward.grade(rollout.trajectories);
  for (size_t i = 0; i < rewards.size(); ++i) rollout.trajectories[i].reward = rewards[i];
  rollout.report = summary(rollout.trajectories);
  rollout.report.rollout_ms = rollout_ms;
  rollout.report.reward_ms = judging.ms();
  return rollout;
}

}  // namespace lockstep::rl
