// What DebugOptions asks to be written of each rollout, and rollouts that are read from such files instead of being
// sampled.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/group.h"
#include "recipes/options.h"
#include "recipes/rollout_source.h"
#include "rl/train_observer.h"

namespace lockstep::recipes {

// The path with {rollout_id} and {rank} filled in. ConfigError: another name in braces.
std::string debug_path(const std::string& path, int64_t rollout, int rank);

// ConfigError where they contradict one another, a path has an unknown name in braces, or several ranks would write one
// file.
void check_debug_options(const DebugOptions& options, int64_t ranks);

// Writes files as DebugOptions says; where it asks for none, nothing. Looks at the datums that are trained on and hands
// them on.
class DebugDump final : public rl::TrainObserver {
 public:
  // `next`: who looks at them, too; may be null, else outlives this.
  DebugDump(const DebugOptions& options, const parallel::Group& group, rl::TrainObserver* next);

  // For TrainPlan::observer; nullptr if nobody looks.
  rl::TrainObserver* observer() { return options_.save_training.empty() ? next_ : this; }

  // The rollout, numbered from 0, before it is trained on. Of several ranks the first writes. ResourceError: the file
  // cannot be written.
  void write_rollout(int64_t rollout, const rl::Rollout& sampled, bool exact_logprobs) const;
  // What training was given of it, and its log-probs and entropies. ResourceError.
  void write_training(int64_t rollout);

  void prepared(std::span<const train::Datum> datums) override;
  void trained(int64_t sample, std::span<const float> logprob, std::span<const float> entropy) override;

 private:
  struct Row {
    train::Datum datum;
    std::vector<float> logprob, entropy;  // of its optimizer step
  };
  const DebugOptions& options_;
  const int rank_;
  rl::TrainObserver* const next_;
  std::vector<Row> rows_;  // of the rollout under way
};

// Rollouts out of DebugOptions::load_rollouts.
class LoadedRollouts final : public RolloutSource {
 public:
  explicit LoadedRollouts(const RlOptions& options) : options_(options) {}

  // DataError: there is no such file, or it holds another number of samples than a rollout has. FormatError naming file
  // and line.
  SampledRollout next(int64_t rollout) override;
  int64_t finish(const SampledRollout& sampled) override { return sampled.gates.prompts_used; }

 private:
  const RlOptions& options_;
};

// The reward of a run whose rollouts are loaded with theirs: it starts nothing, and cannot be asked.
std::unique_ptr<rl::Reward> no_reward();

}  // namespace lockstep::recipes
