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

ResponseText text_of(const RlParts& parts, const RolloutRequest& request) {
  return {.tokenizer = parts.tokenizer, .stop_token_ids = request.params.sampling.stop_token_ids};
}

void set_baselines(RlParts& parts, const RolloutRequest& request, std::span<const rollout::Sample> greedy,
                   std::span<Trajectory> trajectories) {
  const std::vector<Trajectory> baselines =
      make_trajectories(request.prompts, request.labels, greedy, text_of(parts, request));
  const std::vector<float> rewards = parts.reward.grade(baselines);
  for (Trajectory& trajectory : trajectories)
    trajectory.baseline = rewards[static_cast<size_t>(trajectory.group)];
}

}  // namespace

void Watch::stop_if_interrupted() const {
  if (interrupted && interrupted()) throw Cancelled({.what = "interrupted"});
}

PendingRollout rl_submit(RlParts& parts, RolloutRequest request) {
  PendingRollout pending{.request = std::move(request), .tickets = {}};
  const RolloutRequest& asked = pending.request;
  pending.tickets = rollout::submit_groups(parts.sampler, asked.prompts, asked.params, asked.policy);
  if (!asked.greedy_baseline) return pending;
  rollout::GroupParams greedy = asked.params;
  greedy.n = 1;
  greedy.sampling.temperature = 0;
  try {
    pending.greedy = rollout::submit_groups(parts.sampler, asked.prompts, greedy, asked.policy);
  } catch (...) {
    for (const rollout::Ticket ticket : pending.tickets.tickets) parts.sampler.cancel(ticket);
    throw;
  }
  return pending;
}

Rollout rl_collect(RlParts& parts, const PendingRollout& pending, const Watch& watch) {
  const RolloutRequest& request = pending.request;
  const auto on_progress = [&](int64_t done, int64_t of) {
    watch.stop_if_interrupted();
    watch.report(done, of);
  };
  std::vector<rollout::Sample> samples, greedy;
  try {
    samples = rollout::collect_groups(parts.sampler, pending.tickets, on_progress);
    if (request.greedy_baseline) greedy = rollout::collect_groups(parts.sampler, pending.greedy);
  } catch (...) {
    for (const rollout::Ticket ticket : pending.greedy.tickets) parts.sampler.cancel(ticket);
    throw;
  }
  const double rollout_ms = pending.since.ms();

  const Stopwatch judging;
  Rollout rollout;
  rollout.trajectories = make_trajectories(request.prompts, request.labels, samples, text_of(parts, request));
  const std::vector<float> rewards = parts.reward.grade(rollout.trajectories);
  for (size_t i = 0; i < rewards.size(); ++i) rollout.trajectories[i].reward = rewards[i];
  if (request.greedy_baseline) set_baselines(parts, request, greedy, rollout.trajectories);
  rollout.report = summary(rollout.trajectories);
  rollout.report.rollout_ms = rollout_ms;
  rollout.report.reward_ms = judging.ms();
  return rollout;
}

}  // namespace lockstep::rl
