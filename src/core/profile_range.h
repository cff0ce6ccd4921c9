// A named range of host time for profilers: kernels launched inside it are attributed to it (NVTX; Nsight Systems and
// tools/gpu_trace.py read it). Without a profiler attached, and in builds without CUDA, it does nothing.
#pragma once

namespace lockstep {

// Ranges of one thread nest. `name` is a string literal: "train/forward".
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace lockstep
