// The line of metrics.jsonl of one iteration of a reinforcement-learning run, as its options ask for it.
#pragma once

#include "recipes/options.h"
#include "recipes/sampled_rollout.h"
#include "rl/train.h"

namespace lockstep::recipes {

struct IterationFacts {
  int64_t step = 0;  // from 1
  const SampledRollout& sampled;
  const rl::TrainReport& trained;
  int64_t version = 0;  // of the actor that was trained
  double iteration_ms = 0;
  bool exact_logprobs = true;    // the sampler's are the trainer's
  bool policys_logprobs = true;  // the sampler's are the policy's at all
  int64_t abandoned_steps = 0;   // of the run, so far
};

// Without what the source of rollouts, the engine and the machine have to say.
OrderedJson iteration_line(const RlOptions& options, const IterationFacts& facts);

}  // namespace lockstep::recipes
