// How fast weights could come from host memory to a stream's device at best, measured: beside kernels/limits.h.
#pragma once

#include "core/stream.h"

namespace lockstep::kernels {

// GB/s of copying host memory piece by piece, best of the passes in `seconds`: to a GPU from pinned memory, which is
// the limit of its link; on the CPU from memory to memory, all workers.
double measure_host_copy_gb_s(double seconds, Stream& stream);

namespace cuda {
double measure_host_copy_gb_s(double seconds, Stream& stream);  // pack.cu
}

}  // namespace lockstep::kernels
