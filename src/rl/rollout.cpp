#include "rl/rollout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "rl/reward_queue.h"

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

Trajectory trajectory_of(const RlParts& parts, const RolloutRequest& request, const rollout::Sample& sample) {
  const auto prompt = static_cast<size_t>(sample.prompt);
  return make_trajectory(request.prompts[prompt],
                         request.rows.empty() ? std::make_shared<const RewardRow>() : request.rows[prompt], sample,
                         {.tokenizer = parts.tokenizer, .stop_token_ids = request.params.sampling.stop_token_ids});
}

// Trajectories of the samples as they finish, each on its way to the reward at once.
class Grading {
 public:
  Grading(RlParts& parts, const RolloutRequest& request)
      : parts_(parts),
        request_(request),
        trajectories_(request.prompts.size() * static_cast<size_t>(request.params.n)),
        queue_(parts.reward, trajectories_.size(), static_cast<size_t>(request.params.n)) {}

  void add(const rollout::Sample& sample) {
    const auto prompt = static_cast<size_t>(sample.prompt);
    const size_t position = prompt * static_cast<size_t>(request_.params.n) + static_cast<size_t>(sample.index);
    trajectories_[position] = trajectory_of(parts_, request_, sample);
    RewardSample judged = reward_sample(trajectories_[position]);
    judged.rollout = request_.params.rollout;
    queue_.add(position, std::move(judged));
  }
  void poll() { queue_.poll(); }

  Rollout finish(const Watch& watch) {
    std::vector<Score> scores = queue_.finish([&](size_t) { watch.stop_if_interrupted(); });
    std::string failure;
    for (size_t i = 0; i < scores.size(); ++i) {
      Trajectory& trajectory = trajectories_[i];
      trajectory.reward = scores[i].value;
      trajectory.reward_parts = std::move(scores[i].parts);
      if (trajectory.reward || !failure.empty()) continue;
      failure = "prompt " + std::to_string(trajectory.group) + ", sample " + std::to_string(trajectory.index) + ": " +
                scores[i].failure;
      if (request_.on_reward_failure == RewardFailure::stop)
        throw DataError({.what = "a sample's reward is unknown",
                         .where = failure,
                         .attempt = "mend the reward, or leave out such samples (RlOptions::on_reward_failure)"});
    }
    RolloutReport report = summarize(trajectories_);
    report.reward_failure = std::move(failure);
    return {.trajectories = std::move(trajectories_), .report = std::move(report)};
  }

 private:
  RlParts& parts_;
  const RolloutRequest& request_;
  std::vector<Trajectory> trajectories_;
  RewardQueue queue_;
};

// Of each prompt one greedy sample, whose reward is the baseline of the others. Where it is unknown there is nothing to
// compare them with, and theirs is as good as unknown.
void set_baselines(RlParts& parts, const RolloutRequest& request, std::span<const rollout::Sample> greedy,
                   const Watch& watch, Rollout& rollout) {
  std::vector<RewardSample> samples;
  for (const rollout::Sample& sample : greedy) {
    samples.push_back(reward_sample(trajectory_of(parts, request, sample)));
    samples.back().rollout = request.params.rollout;
  }
  const std::vector<Score> scores =
      grade_all(parts.reward, std::move(samples), 1, [&](size_t) { watch.stop_if_interrupted(); });
  for (Trajectory& trajectory : rollout.trajectories) {
    const Score& score = scores[static_cast<size_t>(trajectory.group)];
    if (score.value) {
      trajectory.baseline = *score.value;
    } else if (trajectory.reward) {
      trajectory.reward.reset();
      ++rollout.report.reward_unknown;
      if (rollout.report.reward_failure.empty())
        rollout.report.reward_failure =
            "the greedy sample of prompt " + std::to_string(trajectory.group) + ": " + score.failure;
    }
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
  Grading grading(parts, pending.request);
  std::vector<rollout::Sample> greedy;
  try {
    rollout::collect_groups(
        parts.sampler, pending.tickets,
        [&](int64_t done, int64_t of) {
          watch.stop_if_interrupted();
          watch.report(done, of);
          grading.poll();
        },
        [&](const rollout::Sample& sample) { grading.add(sample); });
    if (pending.request.greedy_baseline) greedy = rollout::collect_groups(parts.sampler, pending.greedy);
  } catch (...) {
    for (const rollout::Ticket ticket : pending.greedy.tickets) parts.sampler.cancel(ticket);
    throw;
  }
  const double rollout_ms = pending.since.ms();

  const Stopwatch judging;
  Rollout rollout = grading.finish(watch);
  if (pending.request.greedy_baseline) set_baselines(parts, pending.request, greedy, watch, rollout);
  rollout.report.rollout_ms = rollout_ms;
  rollout.report.reward_ms = judging.ms();
  return rollout;
}

}  // namespace lockstep::rl
