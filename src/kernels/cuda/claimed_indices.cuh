// Work that blocks of a launch claim from a counter in memory, index after index, so that a slower block takes less.
// counters: how many indices have been claimed, and how many blocks have finished; both 0 between launches. Used by one
// thread of each block, never before wait_for_previous(): blocks of the launch ahead may still be claiming.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

__device__ __forceinline__ int claim_index(uint32_t* counters) {
  return static_cast<int>(atomicAdd(counters, 1u));
}
// After a block's last claim.
__device__ __forceinline__ void finish_claims(uint32_t* counters) {
  __threadfence();
  if (atomicAdd(counters + 1, 1u) == gridDim.x - 1) counters[0] = counters[1] = 0;
}

}  // namespace lockstep::kernels::cuda
