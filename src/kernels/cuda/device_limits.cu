// What kernels may use of the current device.
#include <algorithm>
#include <atomic>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/kernel_choice.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr size_t kLeastShared = size_t{99} << 10;  // of all devices since compute capability 8.0

std::atomic<bool> imitates_least{false};

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

bool has_sm90() {
  static const bool has =
      attribute(cudaDevAttrComputeCapabilityMajor) == 9 && attribute(cudaDevAttrComputeCapabilityMinor) == 0;
  return has && !imitates_least;
}

size_t device_shared_limit() {
  static const auto limit = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return limit;
}

size_t shared_limit() {
  return imitates_least ? std::min(device_shared_limit(), kLeastShared) : device_shared_limit();
}

void imitate_least_gpu(bool on) {
  imitates_least = on;
}

}  // namespace lockstep::kernels::cuda
