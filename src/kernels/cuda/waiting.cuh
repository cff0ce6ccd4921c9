// Thread blocks that wait for other blocks of their launch.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// About half a minute. A block that has waited this long fails the launch (__trap) rather than wait for ever.
inline constexpr int64_t kMaxWaitedCycles = int64_t{1} << 36;

}  // namespace lockstep::kernels::cuda
