// For finding faults: to sample without training, to train on samples out of files, to write both down.
#pragma once

#include <string>

namespace lockstep::recipes {

// A path may hold {rollout_id}, the number of the rollout from 0 on, and {rank}, as in slime and miles.
struct DebugOptions {
  bool rollout_only = false;  // nothing is trained, and no checkpoint is written
  bool train_only = false;    // nothing is sampled: rollouts come out of load_rollouts
  std::string save_rollouts;  // each rollout's samples, one a line of JSON, before they are trained on; empty: nowhere
  std::string load_rollouts;  // such files
  std::string save_training;  // what the trainer was given of each rollout, one datum a line; empty: nowhere
};

}  // namespace lockstep::recipes
