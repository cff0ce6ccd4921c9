// Sums over a block in a fixed order, and counter-based randomness (core/random.h) on the device.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// Sum over kWarps warps: inside each warp as warp_sum, then the warps in order. The same in every thread. `shared`
// holds kWarps floats that no other thread may still be reading.
template <int kWarps>
__device__ __forceinline__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if constexpr (kWarps == 1) return x;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) x = __fadd_rn(x, shared[warp]);
  return x;
}

// lockstep::philox of core/random.h.
__device__ __forceinline__ uint4 philox_bits(uint64_t key, uint4 counter) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
    const uint32_t high0 = __umulhi(kMultiplier0, counter.x), low0 = kMultiplier0 * counter.x;
    const uint32_t high1 = __umulhi(kMultiplier1, counter.z), low1 = kMultiplier1 * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key0, low1, high0 ^ counter.w ^ key1, low0);
  }
  return counter;
}

// lockstep::uniform01 of core/random.h.
__device__ __forceinline__ float uniform_of(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

}  // namespace lockstep::kernels::cuda
