// What core/gpu.h asks of the CUDA runtime; core/absent implements it in a build without CUDA.
#pragma once

#include "core/gpu.h"

namespace lockstep::cuda {

int num_gpus();
GpuIdentity gpu_identity();
bool is_done(void* stream);

}  // namespace lockstep::cuda
