// A rollout that waits to be trained on, with what is known of how it came about.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/gate.h"
#include "rl/pass_rate.h"
#include "versions/store.h"

namespace lockstep::recipes {

struct SampledRollout {
  rl::Rollout rollout;
  rl::GateReport gates;
  int64_t rows_end = 0;            // of the data: where the next rollout begins
  versions::Version version = {};  // that sampled it
  std::vector<rl::PassRate> pass_rates = {};
  int64_t masked = 0;          // samples (rl::mask_truncated)
  bool exact_logprobs = true;  // the sampler's are those that the trainer computes, bit for bit
};

}  // namespace lockstep::recipes
