#include "recipes/debug_dump.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/fs.h"
#include "recipes/rollout_sampling.h"
#include "recipes/samples/sample_line.h"
#include "recipes/trajectory_line.h"

namespace lockstep::recipes {

namespace {

void write_lines(const fs::Path& path, const std::string& lines) {
  if (path.has_parent_path()) fs::require_writable_directory(path.parent_path());
  fs::write_file_atomic(path, lines);
}

template <class T, class Append>
void append_values(std::string& out, const char* key, std::span<const T> values, const Append& append) {
  if (values.empty()) return;
  out += fmt::format(",\"{}\":[", key);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append(values[i]);
  }
  out += ']';
}

std::string datum_line(size_t sample, const train::Datum& datum, std::span<const float> logprob,
                       std::span<const float> entropy) {
  std::string out = fmt::format("{{\"sample\":{}", sample);
  const auto integer = [&](int32_t value) { out += fmt::format("{}", value); };
  const auto number = [&](float value) { append_exact_float(out, value); };
  append_values<int32_t>(out, "tokens", datum.tokens, integer);
  append_values<int32_t>(out, "targets", datum.targets, integer);
  const auto floats = [&](const char* key, std::span<const float> values) { append_values(out, key, values, number); };
  floats("weights", datum.weights);
  floats("sampled_logprobs", datum.sampled_logprobs);
  floats("policy_logprobs", datum.policy_logprobs);
  floats("ref_logprobs", datum.ref_logprobs);
  floats("advantages", datum.advantages);
  floats("values", datum.values);
  floats("returns", datum.returns);
  floats("policy_weights", datum.policy_weights);
  floats("train_logprobs", logprob);
  floats("entropy", entropy);
  return out + "}";
}

std::vector<TrajectoryLine> read_rollout(const std::string& path) {
  const std::optional<std::string> text = fs::read_file_if_exists(path);
  if (!text)
    throw DataError(
        {.what = "there is no saved rollout to train on",
         .where = path,
         .attempt = "DebugOptions::save_rollouts writes such files; {rollout_id} in a path is 0 for the first"});
  std::vector<TrajectoryLine> samples;
  size_t begin = 0, number = 0;
  for (; begin < text->size(); ++number) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    const std::string_view line = std::string_view(*text).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    samples.push_back(parse_trajectory_line(line, fmt::format("{} line {}", path, number + 1)));
  }
  return samples;
}

// A group's samples lie side by side, each group as large as the run's.
void require_groups(std::span<const TrajectoryLine> samples, const RlOptions& options, const std::string& path) {
  const int64_t wanted = options.rollout_batch_size * options.n_samples;
  if (static_cast<int64_t>(samples.size()) != wanted)
    throw DataError({.what = "a saved rollout has another number of samples than a rollout of this run",
                     .where = path,
                     .got = fmt::format("{} samples", samples.size()),
                     .wanted = fmt::format("{}: RlOptions::rollout_batch_size {} x RlOptions::n_samples {}", wanted,
                                           options.rollout_batch_size, options.n_samples)});
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t first = i - i % static_cast<size_t>(options.n_samples);
    if (samples[i].trajectory.group != samples[first].trajectory.group ||
        (i == first && i > 0 && samples[i].trajectory.group == samples[i - 1].trajectory.group))
      throw DataError({.what = "the groups of a saved rollout are not those of this run",
                       .where = fmt::format("{}, sample {}", path, i + 1),
                       .wanted = fmt::format("{} samples of each prompt, side by side", options.n_samples)});
  }
}

// What a report says of the first reward that is unknown; empty if none is. The file does not say why.
std::string first_unknown(std::span<const rl::Trajectory> trajectories, const std::string& path) {
  const auto found = std::ranges::find_if(trajectories, [](const auto& trajectory) { return !trajectory.reward; });
  if (found == trajectories.end()) return "";
  return fmt::format("prompt {}, sample {}: unknown when {} was saved", found->group, found->index, path);
}

class NoReward final : public rl::Reward {
 public:
  Ticket submit(std::vector<rl::RewardSample> /*samples*/) override {
    throw ConfigError({.what = "nothing is graded in this run", .where = "DebugOptions::train_only"});
  }
  std::vector<Graded> poll(Deadline /*deadline*/) override { return {}; }
  void cancel(Ticket /*ticket*/) override {}
};

}  // namespace

std::unique_ptr<rl::Reward> no_reward() {
  return std::make_unique<NoReward>();
}

std::string debug_path(const std::string& path, int64_t rollout, int rank) {
  std::string out;
  size_t at = 0;
  for (size_t open; (open = path.find('{', at)) != path.npos;) {
    const size_t close = path.find('}', open);
    const std::string name = close == path.npos ? "" : path.substr(open, close - open + 1);
    if (name != "{rollout_id}" && name != "{rank}")
      throw ConfigError({.what = "a path of the debug files has a name in braces that is not known",
                         .where = path,
                         .got = name.empty() ? path.substr(open) : name,
                         .wanted = "{rollout_id} or {rank}"});
    out += path.substr(at, open - at);
    out += std::to_string(name == "{rank}" ? int64_t{rank} : rollout);
    at = close + 1;
  }
  return out + path.substr(at);
}

void check_debug_options(const DebugOptions& options, int64_t ranks) {
  if (options.rollout_only && options.train_only)
    throw ConfigError({.what = "a run cannot leave out both sampling and training",
                       .where = "DebugOptions::rollout_only",
                       .got = "DebugOptions::train_only, too",
                       .attempt = "one of them"});
  if (options.train_only && options.load_rollouts.empty())
    throw ConfigError({.what = "a run that samples nothing needs rollouts to train on",
                       .where = "DebugOptions::load_rollouts",
                       .attempt = "save some with DebugOptions::save_rollouts first"});
  if (options.rollout_only && !options.save_training.empty())
    throw ConfigError({.what = "a run that trains nothing gives the trainer nothing that could be saved",
                       .where = "DebugOptions::save_training",
                       .got = "DebugOptions::rollout_only, too",
                       .attempt = "DebugOptions::save_rollouts"});
  if (ranks > 1 && !options.save_training.empty() && options.save_training.find("{rank}") == std::string::npos)
    throw ConfigError({.what = "each rank is given rows of its own, and all would write one file",
                       .where = "DebugOptions::save_training",
                       .got = fmt::format("{} with {} ranks", options.save_training, ranks),
                       .wanted = "{rank} in the path"});
  for (const std::string* path : {&options.save_rollouts, &options.load_rollouts, &options.save_training})
    debug_path(*path, 0, 0);
}

DebugDump::DebugDump(const DebugOptions& options, const parallel::Group& group, rl::TrainObserver* next)
    : options_(options), rank_(group.rank()), next_(next) {
  check_debug_options(options, group.size());
}

void DebugDump::write_rollout(int64_t rollout, const rl::Rollout& sampled, bool exact_logprobs) const {
  if (options_.save_rollouts.empty() || rank_ != 0) return;
  std::string lines;
  for (const rl::Trajectory& trajectory : sampled.trajectories)
    lines += trajectory_line(rollout + 1, trajectory, exact_logprobs) + "\n";
  write_lines(debug_path(options_.save_rollouts, rollout, rank_), lines);
}

void DebugDump::prepared(std::span<const train::Datum> datums) {
  if (next_ != nullptr) next_->prepared(datums);
  rows_.clear();
  for (const train::Datum& datum : datums) rows_.push_back({.datum = datum, .logprob = {}, .entropy = {}});
}

void DebugDump::trained(int64_t sample, std::span<const float> logprob, std::span<const float> entropy) {
  if (next_ != nullptr) next_->trained(sample, logprob, entropy);
  Row& row = rows_.at(static_cast<size_t>(sample));
  row.logprob.assign(logprob.begin(), logprob.end());
  row.entropy.assign(entropy.begin(), entropy.end());
}

void DebugDump::write_training(int64_t rollout) {
  if (options_.save_training.empty()) return;
  std::string lines;
  for (size_t i = 0; i < rows_.size(); ++i)
    lines += datum_line(i, rows_[i].datum, rows_[i].logprob, rows_[i].entropy) + "\n";
  write_lines(debug_path(options_.save_training, rollout, rank_), lines);
  rows_.clear();
}

SampledRollout LoadedRollouts::next(int64_t rollout) {
  const std::string path = debug_path(options_.debug.load_rollouts, rollout, 0);
  std::vector<TrajectoryLine> samples = read_rollout(path);
  require_groups(samples, options_, path);
  SampledRollout loaded;
  std::vector<std::vector<float>> masks;
  for (TrajectoryLine& sample : samples) {
    loaded.exact_logprobs &= sample.exact_logprobs;
    loaded.rollout.trajectories.push_back(std::move(sample.trajectory));
    // A report is of all that was drawn, whether it is learned from or not.
    std::vector<float>& mask = loaded.rollout.trajectories.back().mask;
    masks.push_back(mask);
    std::fill(mask.begin() + static_cast<ptrdiff_t>(sample.prompt_tokens), mask.end(), 1.0f);
  }
  loaded.rollout.report = rl::summarize(loaded.rollout.trajectories);
  loaded.rollout.report.reward_failure = first_unknown(loaded.rollout.trajectories, path);
  for (size_t i = 0; i < masks.size(); ++i) loaded.rollout.trajectories[i].mask = std::move(masks[i]);
  const int64_t groups = options_.rollout_batch_size;
  loaded.gates = {.rounds = 1, .sampled = groups, .prompts_used = groups};
  judge_samples(loaded, options_);
  return loaded;
}

}  // namespace lockstep::recipes
