// Thread blocks that wait for other blocks of their launch.
//
// What they exchange are words that show that they have arrived: the memory holds zeros between launches, and a word is
// stored with all bits inverted, so one that is not 0 has arrived; values whose bits are all set have to be avoided.
// Neither a fence nor a counter stands between a store and its use. Whoever has read a word last stores 0 again.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// About half a minute. A block that has waited this long fails the launch (__trap) rather than wait for ever.
inline constexpr int64_t kMaxWaitedCycles = int64_t{1} << 36;

__device__ __forceinline__ void store_relaxed(uint2* to, uint2 words) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};\n" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
}
__device__ __forceinline__ void store_relaxed(uint4* to, uint4 words) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_relaxed(const uint4* from) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}

}  // namespace lockstep::kernels::cuda
