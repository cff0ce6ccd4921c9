// LoRA's matmuls of many rows, where the rows of x or y pass once at the speed of memory. The bits are those of
// lora.cu; false: nothing done (alignment, ranks, or GPU do not suit).
#pragma once

#include "kernels/cuda/lora_pairs.cuh"

namespace lockstep::kernels::cuda {

// lora_large_reduce.cu. b [rank, x's columns]. together: all matmuls read the same x (lora_shrink); else each its own
// columns (lora_expand_backward).
bool reduce_large(const PairMatmuls& matmuls, const LoraRows& rows, bool together, int multiprocessors,
                  cudaStream_t stream);

// Of a gradient, summed over rows: wide^T narrow, where wide is x or dy and narrow is dh or h.
inline constexpr int kGradientTargets = 4, kGradientTasks = 5;
struct GradientTarget {
  // Element (wide column i, narrow column begin + j) to gradient[offset + i * wide_step + j * narrow_step].
  int64_t begin = 0, offset = 0, wide_step = 0, narrow_step = 0;
  float scale = 1;
};
struct GradientTask {
  Operand wide, narrow;
  GradientTarget target[kGradientTargets];
  int num_targets = 0;
};

// lora_large_gradient.cu. The sums of a lane's blocks of rows are added as they come: nothing between is stored.
bool gradient_large(std::span<const GradientTask> tasks, const GradientPlan& plan, int multiprocessors,
                    cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
