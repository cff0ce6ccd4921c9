// LoRA's products of many rows, where the rows of x or y pass once at the speed of memory. The bits are those of
// lora.cu; false: nothing done (alignment, ranks, or GPU do not suit).
#pragma once

#include "kernels/cuda/lora_pairs.cuh"

namespace lockstep::kernels::cuda {

struct LoraRows {
  bf16* y = nullptr;
  int64_t stride = 0, count = 0;
};

// lora_large_reduce.cu. together: all products read the same x (lora_shrink, b [in, rank]); else each its own columns
// (lora_expand_backward, b [rank, out]).
bool reduce_large(const PairProducts& products, const LoraRows& rows, bool together, int multiprocessors,
                  cudaStream_t stream);

// lora_large_update.cu. together: all products add to the same columns (lora_shrink_backward, b [in, rank]); else each
// to its own (lora_expand, b [rank, out]).
bool update_large(const PairProducts& products, const LoraRows& rows, bool together, int multiprocessors,
                  cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
