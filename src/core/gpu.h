// The GPUs of a host as ranks of a job share them (parallel/).
#pragma once

#include <string>

#include "core/stream.h"

namespace lockstep {

int num_gpus();  // that this process may use; 0 in a build without CUDA. A process uses the first

struct GpuIdentity {
  int compute_capability = 0;  // 90 for sm_90
  std::string uuid;            // tells two GPUs of a host apart
};
GpuIdentity gpu_identity();  // of the one that this process uses; DeviceError if there is none

// Whether Stream::synchronize() would not wait; DeviceError as there.
bool is_done(const Stream& stream);

}  // namespace lockstep
