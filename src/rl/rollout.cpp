#include "rl/rollout.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
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

SampleKey key_of(const RolloutRequest& request, int64_t prompt, int64_t index) {
  const rollout::Prompt& asked = request.prompts[static_cast<size_t>(prompt)];
  return {.rollout = request.params.rollout, .row = asked.row, .sample = asked.first_sample + index};
}

// Trajectories of the samples as they finish, each on its way to the reward at once.
class Grading {
 public:
  Grading(RlParts& parts, const RolloutRequest& request)
      : parts_(parts),
        request_(request),
        samples_(request.prompts.size() * static_cast<size_t>(request.params.n)),
        trajectories_(samples_.size()),
        queue_(parts.reward, samples_.size(), static_cast<size_t>(request.params.n)) {
    if (parts.graded != nullptr)
      queue_.on_graded([this](size_t position, const Score& score) {
        rollout::Sample& sample = samples_[position];
        if (score.value)
          parts_.graded->add(key_of(request_, sample.prompt, sample.index),
                             {.sample = std::move(sample), .score = score});
      });
  }

  void add(const rollout::Sample& sample) {
    const size_t position = place(sample);
    if (parts_.graded != nullptr) samples_[position] = sample;
    RewardSample judged = reward_sample(trajectories_[position]);
    judged.rollout = request_.params.rollout;
    queue_.add(position, std::move(judged));
  }
  // One that was graded before.
  void add_found(const PendingRollout::Found& found) {
    rollout::Sample sample = found.graded.sample;
    sample.prompt = found.prompt;
    sample.index = found.index;
    found_.emplace(place(sample), found.graded.score);
  }
  void poll() { queue_.poll(); }

  Rollout finish(const Watch& watch) {
    std::vector<Score> scores = queue_.finish([&](size_t) { watch.stop_if_interrupted(); });
    for (auto& [position, score] : found_) scores[position] = std::move(score);
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
  size_t place(const rollout::Sample& sample) {
    const size_t position =
        static_cast<size_t>(sample.prompt) * static_cast<size_t>(request_.params.n) + static_cast<size_t>(sample.index);
    trajectories_[position] = trajectory_of(parts_, request_, sample);
    return position;
  }

  RlParts& parts_;
  const RolloutRequest& request_;
  std::vector<rollout::Sample> samples_;  // on their way to RlParts::graded
  std::vector<Trajectory> trajectories_;
  std::map<size_t, Score> found_;
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

namespace {

// Which samples are there already, and which are to be drawn. A reward that judges whole groups has judged one or not.
void plan(const RlParts& parts, PendingRollout& pending) {
  const RolloutRequest& request = pending.request;
  for (int64_t prompt = 0; prompt < static_cast<int64_t>(request.prompts.size()); ++prompt) {
    std::vector<PendingRollout::Found> found;
    for (int64_t i = 0; i < request.params.n && parts.graded != nullptr; ++i)
      if (auto graded = parts.graded->find(key_of(request, prompt, i), request.policy.version))
        found.push_back({.prompt = prompt, .index = i, .graded = std::move(*graded)});
    const bool all = static_cast<int64_t>(found.size()) == request.params.n;
    if (found.empty() || (!all && parts.reward.grades_groups())) {
      pending.whole.push_back(prompt);
      continue;
    }
    auto next = found.begin();
    for (int64_t i = 0; i < request.params.n; ++i)
      if (next != found.end() && next->index == i)
        ++next;
      else
        pending.single.emplace_back(prompt, i);
    std::ranges::move(found, std::back_inserter(pending.found));
  }
}

void cancel(rollout::Sampler& sampler, const rollout::GroupTickets& groups) {
  for (const rollout::Ticket ticket : groups.tickets) sampler.cancel(ticket);
}

}  // namespace

PendingRollout rl_submit(RlParts& parts, RolloutRequest request) {
  PendingRollout pending{.request = std::move(request), .tickets = {}};
  plan(parts, pending);
  const RolloutRequest& asked = pending.request;
  std::vector<rollout::Prompt> whole, single;
  for (const int64_t prompt : pending.whole) whole.push_back(asked.prompts[static_cast<size_t>(prompt)]);
  for (const auto& [prompt, index] : pending.single) {
    single.push_back(asked.prompts[static_cast<size_t>(prompt)]);
    single.back().first_sample += index;
  }
  rollout::GroupParams one = asked.params;
  one.n = 1;
  rollout::GroupParams greedy = one;
  greedy.sampling.temperature = 0;
  try {
    pending.tickets = rollout::submit_groups(parts.sampler, whole, asked.params, asked.policy);
    pending.single_tickets = rollout::submit_groups(parts.sampler, single, one, asked.policy);
    if (asked.greedy_baseline)
      pending.greedy = rollout::submit_groups(parts.sampler, asked.prompts, greedy, asked.policy);
  } catch (...) {
    cancel(parts.sampler, pending.tickets);
    cancel(parts.sampler, pending.single_tickets);
    throw;
  }
  return pending;
}

Rollout rl_collect(RlParts& parts, const PendingRollout& pending, const Watch& watch) {
  Grading grading(parts, pending.request);
  for (const PendingRollout::Found& found : pending.found) grading.add_found(found);
  const auto n = static_cast<size_t>(pending.request.params.n);
  const auto total = static_cast<int64_t>(pending.request.prompts.size() * n);
  auto before = static_cast<int64_t>(pending.found.size());  // finished before the tickets that are waited for
  const auto on_progress = [&](int64_t done, int64_t /*of*/) {
    watch.stop_if_interrupted();
    watch.report(before + done, total);
    grading.poll();
  };
  std::vector<rollout::Sample> greedy;
  try {
    rollout::collect_groups(parts.sampler, pending.tickets, on_progress, [&](rollout::Sample sample) {
      sample.prompt = pending.whole[static_cast<size_t>(sample.prompt)];
      grading.add(sample);
    });
    before += static_cast<int64_t>(pending.whole.size() * n);
    rollout::collect_groups(parts.sampler, pending.single_tickets, on_progress, [&](rollout::Sample sample) {
      std::tie(sample.prompt, sample.index) = pending.single[static_cast<size_t>(sample.prompt)];
      grading.add(sample);
    });
    if (pending.request.greedy_baseline) greedy = rollout::collect_groups(parts.sampler, pending.greedy);
  } catch (...) {
    cancel(parts.sampler, pending.single_tickets);
    cancel(parts.sampler, pending.greedy);
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
