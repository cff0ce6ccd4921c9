// Which prompts a rollout reads: the data order, or what difficulty pools make of it.
#pragma once

#include <vector>

#include "recipes/options.h"
#include "recipes/training_run.h"
#include "rl/difficulty.h"
#include "rl/gate.h"

namespace lockstep::recipes {

// Difficulty pools choose prompts by the rewards of all earlier rollouts. So with pools no rollout can be sampled
// before the one ahead of it has been graded.
class PromptOrder {
 public:
  // ConfigError for pools with rollouts that are sampled ahead (RlOptions::staleness).
  PromptOrder(const RlOptions& options, int64_t num_prompts);

  // Adds the history of the pools to the run's checkpoints, and restores it if the run was resumed. Does nothing
  // without pools. FormatError: the checkpoint's history is damaged.
  void keep_in(TrainingRun& run);

  // The data rows of prompts first .. first + count - 1 of the rollout that begins at data position `position`. A
  // rollout asks for its prompts in order, beginning with first = 0.
  std::vector<int64_t> rows(int64_t position, int64_t first, int64_t count);
  // How many rows of the data order the rollout has read.
  int64_t rows_read(const rl::GateReport& report) const;
  // After the rollout was trained on: records what its groups earned, and returns rows_read.
  int64_t finish(const rl::GateReport& report);

  // difficulty/easy, difficulty/normal, difficulty/hard: prompts in each pool; nothing without pools.
  OrderedJson metrics() const;

 private:
  data::DataOrder order_;
  const bool on_;
  rl::DifficultyPools pools_;
  std::vector<rl::DifficultyPools::Pick> picks_;  // of this rollout
};

}  // namespace lockstep::recipes
