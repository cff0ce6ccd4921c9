// The GPU's part of kernels/kernel_choice.h: linear_choice.cu and device_limits.cu, or kernels/absent in a build
// without CUDA.
#pragma once

#include "kernels/kernel_choice.h"

namespace lockstep::kernels::cuda {

// For the stream's current queue.
void choose_kernels(KernelChoice choice, Stream& stream);
void imitate_least_gpu(bool on);

}  // namespace lockstep::kernels::cuda
