#include "recipes/samples/rollout_samples.h"

#include <limits>
#include <utility>

namespace lockstep::recipes {

RolloutSamples::RolloutSamples(const SaveOptions& save, int64_t resume_step, const text::Tokenizer& tokenizer)
    : tokenizer_(tokenizer) {
  if (!save.save.empty() && save.keep_samples > 0) writer_.emplace(save.save, resume_step, save.keep_samples);
}

RolloutSamples::~RolloutSamples() {
  if (written_.valid()) written_.wait();
}

void RolloutSamples::prepared(std::span<const train::Datum> datums) {
  rows_.clear();
  weights_.clear();
  for (const train::Datum& datum : datums) {
    weights_.push_back(datum.weights);
    rows_.push_back({.policy_logprobs = datum.policy_logprobs,
                     .ref_logprobs = datum.ref_logprobs,
                     .advantages = datum.advantages,
                     .train_logprobs = {},
                     .entropy = {}});
  }
}

void RolloutSamples::trained(int64_t sample, std::span<const float> logprob, std::span<const float> entropy) {
  TrainedRows& rows = rows_.at(static_cast<size_t>(sample));
  rows.train_logprobs.assign(logprob.begin(), logprob.end());
  rows.entropy.assign(entropy.begin(), entropy.end());
  // The head leaves out rows that the loss does not read.
  const std::vector<float>& weights = weights_.at(static_cast<size_t>(sample));
  for (auto* values : {&rows.train_logprobs, &rows.entropy})
    for (size_t t = 0; t < values->size(); ++t)
      if (weights[t] == 0) (*values)[t] = std::numeric_limits<float>::quiet_NaN();
}

void RolloutSamples::write(int64_t step, rl::Rollout&& rollout) {
  if (!writer_) return;
  wait();
  written_ = std::async(std::launch::async, [this, step, trajectories = std::move(rollout.trajectories),
                                             rows = std::exchange(rows_, {})]() mutable {
    rows.resize(trajectories.size());
    writer_->write(sample_groups_of(step, trajectories, rows, &tokenizer_));
  });
}

void RolloutSamples::wait() {
  if (written_.valid()) written_.get();
}

std::vector<SampleWriter::Group> sample_groups_of(int64_t step, std::span<const rl::Trajectory> trajectories,
                                                  std::span<const TrainedRows> rows, const text::Tokenizer* tokenizer) {
  std::vector<SampleWriter::Group> groups;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const rl::Trajectory& trajectory = trajectories[i];
    if (i == 0 || trajectory.group != trajectories[i - 1].group)
      groups.push_back({.entry = {.step = step, .group = trajectory.group}, .lines = {}});
    SampleWriter::Group& group = groups.back();
    group.entry.rewards.push_back(trajectory.reward);
    group.entry.lengths.push_back(static_cast<int64_t>(trajectory.tokens.size() - response_begin(trajectory)));
    group.entry.truncated.push_back(trajectory.truncated);
    group.lines += sample_line(step, trajectory, rows[i], tokenizer) + "\n";
  }
  return groups;
}

}  // namespace lockstep::recipes
