#include "recipes/samples/rollout_samples.h"

#include <limits>
#include <utility>

#include "parallel/bytes.h"
#include "parallel/gather.h"

namespace lockstep::recipes {

RolloutSamples::RolloutSamples(const SaveOptions& save, int64_t resume_step, const text::Tokenizer& tokenizer,
                               parallel::Group& group)
    : tokenizer_(tokenizer), group_(group), keeps_(!save.save.empty() && save.keep_samples > 0) {
  if (keeps_ && group.rank() == 0) writer_.emplace(save.save, resume_step, save.keep_samples);
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

namespace {
void write_list(parallel::ByteWriter& writer, const std::vector<float>& values) {
  writer.add<uint64_t>(values.size());
  for (const float value : values) writer.add(value);
}
std::vector<float> read_list(parallel::ByteReader& reader) {
  std::vector<float> values;
  for (auto left = reader.take<uint64_t>(); left > 0; --left) values.push_back(reader.take<float>());
  return values;
}
}  // namespace

void RolloutSamples::gather() {
  parallel::ByteWriter writer;
  for (size_t sample = 0; sample < rows_.size(); ++sample) {
    if (rows_[sample].train_logprobs.empty()) continue;
    writer.add<uint64_t>(sample);
    write_list(writer, rows_[sample].train_logprobs);
    write_list(writer, rows_[sample].entropy);
  }
  for (const std::vector<std::byte>& bytes : parallel::gather_varied(group_, writer.take())) {
    parallel::ByteReader reader(bytes);
    while (!reader.empty()) {
      TrainedRows& rows = rows_.at(reader.take<uint64_t>());
      rows.train_logprobs = read_list(reader);
      rows.entropy = read_list(reader);
    }
  }
}

void RolloutSamples::write(int64_t step, rl::Rollout&& rollout) {
  if (keeps_ && group_.size() > 1) gather();
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
