// Which prompts a rollout reads: the data order, or what difficulty pools make of it.
#pragma once

#include <vector>

#include "recipes/options.h"
#include "recipes/training_run.h"
#include "rl/difficulty.h"
#include "rl/gate.h"

namespace lockstep::recipes {

// Pools know what the rollout before has earned, so that none is sampled ahead of it.
class PromptOrder {
 public:
  // ConfigError for pools with rollouts that are sampled ahead (RlOptions::staleness).
  PromptOrder(const RlOptions& options, int64_t num_prompts);

  // From now on the history of the pools lies in the checkpoints of the run; of a resumed one it is taken over. Nothing
  // where there are no pools. FormatError.
  void keep_in(TrainingRun& run);

  // The rows of prompts first .. first + count - 1 of the rollout that begins at data position `position`; of a rollout
  // they are asked for round by round, from 0 on.
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
