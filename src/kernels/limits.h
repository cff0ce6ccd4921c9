// What this machine can do at best, measured: the denominators of every "% of the limit" in a benchmark record.
#pragma once

#include "core/stream.h"

namespace lockstep::kernels {

// GFLOP/s for about `seconds`: of fused multiply-adds on registers alone, all workers; on a GPU of a bf16 matrix
// matmul (cuBLASLt, 8192 cubed, random data), counting two per multiply-add.
double measure_fma_gflops(double seconds, Stream& stream);

// GB/s of reading a buffer of `bytes` (far larger than the caches) once per pass, all workers or the whole GPU, best of
// the passes in `seconds`.
double measure_read_gb_s(size_t bytes, double seconds, Stream& stream);

// GB/s of copying host memory piece by piece, best of the passes in `seconds`: to a GPU from pinned memory, which is
// the limit of its link; on the CPU from memory to memory, all workers. As fast as weights could be loaded at best.
double measure_host_copy_gb_s(double seconds, Stream& stream);

}  // namespace lockstep::kernels
