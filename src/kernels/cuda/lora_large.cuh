// LoRA matmuls for many rows, which read the rows of x or y once at memory bandwidth. The bits are those of lora.cu.
// They return false, and have done nothing, if alignment, ranks or GPU are not supported.
#pragma once

#include "kernels/cuda/lora_pairs.cuh"

namespace lockstep::kernels::cuda {

// lora_large_reduce.cu. b is [rank, columns of x]. together: all matmuls read the same x (lora_shrink); otherwise each
// reads its own columns (lora_expand_backward).
bool reduce_large(const PairMatmuls& matmuls, const LoraRows& rows, bool together, int multiprocessors,
                  cudaStream_t stream);

// A gradient as a sum over rows: wide^T narrow, where wide is x or dy and narrow is dh or h.
inline constexpr int kGradientTargets = 4, kGradientTasks = 5;
struct GradientTarget {
  // Element (wide column i, narrow column begin + j) goes to gradient[offset + i * wide_step + j * narrow_step].
  int64_t begin = 0, offset = 0, wide_step = 0, narrow_step = 0;
  float scale = 1;
};
struct GradientTask {
  Operand wide, narrow;
  GradientTarget target[kGradientTargets];
  int num_targets = 0;
};

// lora_large_gradient.cu. Sums a lane's blocks of rows as it computes them, without storing partial sums.
bool gradient_large(std::span<const GradientTask> tasks, const GradientPlan& plan, int multiprocessors,
                    cudaStream_t stream);

// lora_large_backward.cu. dh, and each block's sums of dA and dB in plan.partial: those of pair p of block b begin at
// b * floats + da[p] and + db[p].
struct LoraBackward {
  const GradientPlan& plan;
  Operand x, dh;
  ConstTensor h, dy;
  std::span<const LoraPair> pairs;
  int64_t da[kMaxPairs], db[kMaxPairs], floats;
  uint32_t* ready;  // zeros, one per block; the caller zeroes them again
};
bool backward_large(const LoraBackward& call, int multiprocessors, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
