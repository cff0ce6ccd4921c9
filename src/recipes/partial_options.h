// Partial rollouts: long samples are drawn over several rollouts.
#pragma once

#include <cstdint>

namespace lockstep::recipes {

struct PartialOptions {
  bool on = false;
  int64_t tokens = 0;     // of a sample in one rollout; the rest is drawn in the next ones, with their versions
  bool mask_old = false;  // tokens that an earlier rollout drew learn nothing
};

}  // namespace lockstep::recipes
