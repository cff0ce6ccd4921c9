// Which rank has which gradient lanes of a step, and which samples lie in them (train/gradient_lanes.h adds them up).
#pragma once

#include <cstdint>

#include "parallel/group.h"

namespace lockstep::train {

inline constexpr int kGradientLanes = 8, kMaxGradientLanes = 64;

// Lanes begin .. end - 1 of `of`: a rank's share, which is one of the equal subtrees of the tree that adds the lanes.
struct LaneRange {
  int begin = 0, end = kGradientLanes, of = kGradientLanes;
  int size() const { return end - begin; }
};

// ConfigError unless the lanes can be dealt out to so many ranks, the same number to each.
void require_even_lanes(int64_t lanes, int64_t ranks);

// Rank p of P has the lanes p * lanes / P .. (p + 1) * lanes / P - 1. ConfigError unless `lanes` is 8, 16, 32 or 64
// (their number decides bits) and P divides it (P does not).
LaneRange lanes_of(const parallel::Group& group, int lanes = kGradientLanes);

struct SampleRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Lane g holds the samples g * B / lanes .. (g + 1) * B / lanes - 1 of a step of B samples (integer arithmetic); a
// small step leaves lanes empty.
int lane_of(int64_t sample, int64_t num_samples, int lanes = kGradientLanes);
SampleRange samples_of(const LaneRange& range, int64_t num_samples);

}  // namespace lockstep::train
