#include "rl/pending_rollout.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "core/error.h"
#include "core/stopwatch.h"

namespace lockstep::rl {

namespace {

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

}  // namespace

PendingRollout::PendingRollout(RlParts& parts, RolloutRequest request)
    : parts_(parts),
      request_(std::move(request)),
      trajectories_(request_.prompts.size() * static_cast<size_t>(request_.params.n)),
      kept_(parts.graded != nullptr ? trajectories_.size() : 0),
      queue_(parts.reward, trajectories_.size(), static_cast<size_t>(request_.params.n)),
      greedy_queue_(parts.reward, request_.greedy_baseline ? request_.prompts.size() : 0, 1) {
  if (parts_.graded != nullptr)
    queue_.on_graded([this](size_t position, const Score& score) {
      rollout::Sample& sample = kept_[position];
      if (score.value)
        parts_.graded->add(key_of(request_, sample.prompt, sample.index),
                           {.sample = std::move(sample), .score = score});
    });
  plan();
  try {
    submit();
  } catch (...) {
    cancel();
    throw;
  }
}

PendingRollout::~PendingRollout() {
  cancel();
}

// Which samples are there already, and which are to be drawn. A reward that judges whole groups has judged one or not.
void PendingRollout::plan() {
  for (int64_t prompt = 0; prompt < static_cast<int64_t>(request_.prompts.size()); ++prompt) {
    std::vector<Found> found;
    for (int64_t i = 0; i < request_.params.n && parts_.graded != nullptr; ++i)
      if (auto graded = parts_.graded->find(key_of(request_, prompt, i), request_.policy.version))
        found.push_back({.prompt = prompt, .index = i, .graded = std::move(*graded)});
    const bool all = static_cast<int64_t>(found.size()) == request_.params.n;
    if (found.empty() || (!all && parts_.reward.grades_groups())) {
      whole_.push_back(prompt);
      continue;
    }
    auto next = found.begin();
    for (int64_t i = 0; i < request_.params.n; ++i)
      if (next != found.end() && next->index == i)
        ++next;
      else
        single_.emplace_back(prompt, i);
    std::ranges::move(found, std::back_inserter(found_));
  }
  for (Found& found : found_) {
    found.graded.sample.prompt = found.prompt;
    found.graded.sample.index = found.index;
    place(found.graded.sample);
  }
}

void PendingRollout::submit() {
  std::vector<rollout::Prompt> whole, single;
  for (const int64_t prompt : whole_) whole.push_back(request_.prompts[static_cast<size_t>(prompt)]);
  for (const auto& [prompt, index] : single_) {
    single.push_back(request_.prompts[static_cast<size_t>(prompt)]);
    single.back().first_sample += index;
  }
  rollout::GroupParams one = request_.params;
  one.n = 1;
  rollout::GroupParams greedy = one;
  greedy.sampling.temperature = 0;
  of_whole_.emplace(rollout::submit_groups(parts_.sampler, whole, request_.params, request_.policy),
                    [this](rollout::Sample sample) {
                      sample.prompt = whole_[static_cast<size_t>(sample.prompt)];
                      judge(sample);
                    });
  of_single_.emplace(rollout::submit_groups(parts_.sampler, single, one, request_.policy),
                     [this](rollout::Sample sample) {
                       std::tie(sample.prompt, sample.index) = single_[static_cast<size_t>(sample.prompt)];
                       judge(sample);
                     });
  if (request_.greedy_baseline)
    greedy_.emplace(rollout::submit_groups(parts_.sampler, request_.prompts, greedy, request_.policy),
                    [this](const rollout::Sample& sample) { judge_greedy(sample); });
}

std::vector<rollout::GroupCollector*> PendingRollout::collectors() {
  std::vector<rollout::GroupCollector*> all;
  for (auto* collector : {&of_whole_, &of_single_, &greedy_})
    if (*collector) all.push_back(&**collector);
  return all;
}

void PendingRollout::cancel() {
  for (const rollout::GroupCollector* collector : collectors())
    if (!collector->done()) collector->cancel(parts_.sampler);
}

bool PendingRollout::take(const rollout::Event& event) {
  return std::ranges::any_of(collectors(), [&](rollout::GroupCollector* collector) { return collector->take(event); });
}

bool PendingRollout::take(Reward::Graded& graded) {
  return queue_.take(graded) || greedy_queue_.take(graded);
}

void PendingRollout::stop_if_failed() const {
  of_whole_->stop_if_failed();
  of_single_->stop_if_failed();
  if (greedy_) greedy_->stop_if_failed();
}

bool PendingRollout::failed() const {
  return of_whole_->failed() || of_single_->failed() || (greedy_ && greedy_->failed());
}

bool PendingRollout::drawn() const {
  return of_whole_->done() && of_single_->done() && (!greedy_ || greedy_->done());
}

bool PendingRollout::grading() const {
  return !queue_.idle() || !greedy_queue_.idle();
}

int64_t PendingRollout::samples_drawn() const {
  return static_cast<int64_t>(found_.size()) + of_whole_->finished() + of_single_->finished();
}

size_t PendingRollout::place(const rollout::Sample& sample) {
  const size_t position =
      static_cast<size_t>(sample.prompt) * static_cast<size_t>(request_.params.n) + static_cast<size_t>(sample.index);
  trajectories_[position] = trajectory_of(parts_, request_, sample);
  return position;
}

void PendingRollout::judge(const rollout::Sample& sample) {
  const size_t position = place(sample);
  if (parts_.graded != nullptr) kept_[position] = sample;
  RewardSample judged = reward_sample(trajectories_[position]);
  judged.rollout = request_.params.rollout;
  queue_.add(position, std::move(judged));
}

void PendingRollout::judge_greedy(const rollout::Sample& sample) {
  RewardSample judged = reward_sample(trajectory_of(parts_, request_, sample));
  judged.rollout = request_.params.rollout;
  greedy_queue_.add(static_cast<size_t>(sample.prompt), std::move(judged));
}

Rollout PendingRollout::finish() && {
  std::vector<Score> scores = std::move(queue_).scores();
  for (Found& found : found_) {
    const size_t position =
        static_cast<size_t>(found.prompt) * static_cast<size_t>(request_.params.n) + static_cast<size_t>(found.index);
    scores[position] = std::move(found.graded.score);
  }
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
  Rollout rollout{.trajectories = std::move(trajectories_), .report = {}};
  rollout.report = summarize(rollout.trajectories);
  rollout.report.reward_failure = std::move(failure);
  if (request_.greedy_baseline) set_baselines(rollout, std::move(greedy_queue_).scores());
  return rollout;
}

// Of each prompt one greedy sample, whose reward is the baseline of the others. Where it is unknown there is nothing to
// compare them with, and theirs is as good as unknown.
void PendingRollout::set_baselines(Rollout& rollout, std::span<const Score> scores) const {
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

namespace {

using Beside = std::span<const std::unique_ptr<PendingRollout>>;

constexpr std::chrono::milliseconds kBetweenReports{100};

// Hands over what the reward has graded, if it has anything in flight.
void grade(RlParts& parts, std::span<PendingRollout* const> rollouts, Reward::Deadline deadline) {
  if (std::ranges::none_of(rollouts, [](const PendingRollout* one) { return one->grading(); })) return;
  for (Reward::Graded& graded : wait_for_graded(parts.reward, deadline))
    std::ranges::any_of(rollouts, [&](PendingRollout* one) { return one->take(graded); });
}

// Lets the sampler work, and hands over what has come of it.
void sample(RlParts& parts, std::span<PendingRollout* const> rollouts, std::vector<rollout::Event>& of_others) {
  const auto deadline = std::chrono::steady_clock::now() + kBetweenReports;
  for (const rollout::Event& event : rollout::wait_for_events(parts.sampler, deadline))
    if (std::ranges::none_of(rollouts, [&](PendingRollout* one) { return one->take(event); }))
      of_others.push_back(event);
}

std::vector<PendingRollout*> pointers(Beside rollouts) {
  std::vector<PendingRollout*> all;
  for (const auto& one : rollouts) all.push_back(one.get());
  return all;
}

// Reports the times of its two halves.
void wait_for(RlParts& parts, PendingRollout& first, Beside beside, const Watch& watch,
              std::vector<rollout::Event>& of_others, RolloutReport& times) {
  std::vector<PendingRollout*> rollouts = pointers(beside);
  rollouts.insert(rollouts.begin(), &first);
  const Stopwatch sampling;
  first.stop_if_failed();  // while another was waited for
  while (!first.drawn()) {
    sample(parts, rollouts, of_others);
    first.stop_if_failed();
    watch.stop_if_interrupted();
    watch.report(first.samples_drawn(), first.num_samples());
    grade(parts, rollouts, {});
  }
  times.rollout_ms = sampling.ms();
  const Stopwatch judging;
  while (first.grading()) {
    watch.stop_if_interrupted();
    const bool drawing = std::ranges::any_of(beside, [](const auto& one) { return !one->drawn() && !one->failed(); });
    if (drawing) sample(parts, rollouts, of_others);
    grade(parts, rollouts, drawing ? Reward::Deadline{} : std::chrono::steady_clock::now() + kBetweenReports);
  }
  times.reward_ms = judging.ms();
}

}  // namespace

std::unique_ptr<PendingRollout> rl_submit(RlParts& parts, RolloutRequest request) {
  return std::make_unique<PendingRollout>(parts, std::move(request));
}

Rollout rl_collect(RlParts& parts, std::unique_ptr<PendingRollout> pending, Beside beside, const Watch& watch) {
  std::vector<rollout::Event> of_others;
  RolloutReport times;
  try {
    wait_for(parts, *pending, beside, watch, of_others, times);
  } catch (...) {
    parts.sampler.put_back(of_others);
    throw;
  }
  parts.sampler.put_back(of_others);
  Rollout rollout = std::move(*pending).finish();
  rollout.report.rollout_ms = times.rollout_ms;
  rollout.report.reward_ms = times.reward_ms;
  return rollout;
}

void rl_take_graded(RlParts& parts, Beside pending) {
  grade(parts, pointers(pending), {});
}

void rl_finish_grading(RlParts& parts, Beside pending, const Watch& watch) {
  const std::vector<PendingRollout*> rollouts = pointers(pending);
  while (std::ranges::any_of(rollouts, [](const PendingRollout* one) { return one->grading(); })) {
    watch.stop_if_interrupted();
    grade(parts, rollouts, std::chrono::steady_clock::now() + kBetweenReports);
  }
}

}  // namespace lockstep::rl
