// The gradient of one step: 8 lanes, each one chain over its samples, and their sum in lane order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::train {

inline constexpr int kGradientLanes = 8;

// Lane g holds the samples g*B/8 .. (g+1)*B/8 - 1 of a step of B samples (integer arithmetic); a small step leaves
// lanes empty.
int lane_of(int64_t sample, int64_t num_samples);

// Most lanes that may be open at once, so that a micro-batch may reach across them: as many as fit the memory set aside
// for that (64 MiB, on a GPU 1 GiB), at least 2.
int64_t open_lanes(int64_t lane_bytes, Device device);

// Samples arrive in batch order. A lane's buffer exists from its first sample until its last has been consumed; then it
// is added to the total (which starts at 0) and used again, so that few lanes are alive at once. One thread.
class GradientLanes {
 public:
  GradientLanes(int64_t num_floats, Stream& stream) : num_floats_(num_floats), stream_(stream) {}

  void begin(int64_t num_samples);  // forgets everything of the step before
  float* lane(int64_t sample);      // the buffer of this sample's lane, 0 when its first sample asks; samples ascend
  // Samples 0 .. num_samples - 1 are in their lanes: adds up the lanes that are complete.
  void consumed(int64_t num_samples);
  ConstTensor total() const;  // [num_floats]; of a step whose samples were all consumed

 private:
  struct Lane {
    int index = 0;
    Buffer gradient;
  };
  Buffer take();  // zeroed
  void give(Buffer buffer);

  int64_t num_floats_ = 0, num_samples_ = 0;
  Stream& stream_;          // its device holds the lanes
  std::vector<Lane> open_;  // in lane order
  Buffer total_;
  std::vector<Buffer> free_;
};

}  // namespace lockstep::train
