// Our own matmuls, made for few rows, where the weight is read once at the speed of memory.
#pragma once

#include <span>

#include "kernels/cuda/tile.cuh"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {

// What becomes of an accumulator: y = (acc + bias) + residual in f32, rounded once.
struct Epilogue {
  void* y = nullptr;
  int64_t y_stride = 0;
  bool y_f32 = false;
  const float* bias = nullptr;
  const void* residual = nullptr;  // of y's type
  int64_t residual_stride = 0;

  __device__ __forceinline__ float residual_at(int64_t m, int64_t n) const {
    const int64_t at = m * residual_stride + n;
    return y_f32 ? static_cast<const float*>(residual)[at] : __bfloat162float(static_cast<const bf16*>(residual)[at]);
  }
  __device__ __forceinline__ void store(int64_t m, int64_t n, float value) const {
    const int64_t at = m * y_stride + n;
    if (y_f32)
      static_cast<float*>(y)[at] = value;
    else
      static_cast<bf16*>(y)[at] = __float2bfloat16_rn(value);
  }
};

__device__ __forceinline__ void store_output(const Epilogue& end, int64_t m, int64_t n, float value) {
  if (end.bias) value = __fadd_rn(value, end.bias[n]);
  if (end.residual) value = __fadd_rn(value, end.residual_at(m, n));
  end.store(m, n, value);
}

// y[M, N] = x[M, K] w^T: w is [N, K], or [K, N] when transposed (the backward matmul with the same weight).
struct Matmul {
  Operand x, w;
  bool transposed = false;
  int64_t outputs = 0;
  Epilogue end;
};

// An adapter's pairs beside a matmul: h = x A, next to each other in one matrix, then y += scale h B if `expand`. No
// pairs: nothing.
inline constexpr int kMaxInner = kMaxSitePairs;
inline constexpr int kInnerColumns = 16;  // of h, of one block
inline constexpr int64_t kMaxExpandedRank = 64;
struct LoraShrinks {
  std::span<const LoraPair> pairs;  // aligned A
  bf16* h = nullptr;
  int64_t h_stride = 0;
  bool expand = false;           // even ranks up to kMaxExpandedRank, outputs in tiles of 16
  uint32_t* counters = nullptr;  // two zeros, which the launch leaves as zeros

  // Of `tokens` rows each.
  int64_t blocks(int64_t rows, int64_t tokens) const {
    int64_t across = 0;
    for (const LoraPair& pair : pairs) across += (pair.rank() + kInnerColumns - 1) / kInnerColumns;
    return across * ((rows + tokens - 1) / tokens);
  }
};

// A tile shape: one block computes `tokens` x `rows` outputs.
struct SmallKernel {
  int tokens = 0, rows = 0;
  size_t shared_bytes = 0;
  void (*launch)(const Matmul&, cudaStream_t) = nullptr;
  // Of linear_ring.cu: wants aligned operands, begins early, makes an adapter's matmuls in the same launch, of bf16.
  void (*launch_adapted)(const Matmul&, const LoraShrinks&, cudaStream_t) = nullptr;

  bool ring() const { return launch_adapted != nullptr; }
  bool can_expand() const { return ring() && rows % 16 == 0; }
};

// The kernels for plain weights, and the one for any matmul at all; all give the same bits.
std::span<const SmallKernel> small_kernels();
const SmallKernel& any_kernel(bool transposed);
// linear_ring.cu: for up to this many rows; none where the GPU or the number of rows does not suit.
inline constexpr int64_t kRingRows = 64;
inline constexpr int kRingInnerTokens = 16;  // of a block that makes h
std::span<const SmallKernel> ring_kernels(int64_t rows);
// linear_ring.cu: the adapter's h alone; false where its blocks do not suit.
bool ring_inner(const Operand& x, const LoraShrinks& inner, cudaStream_t stream);
// linear.cu: lora_shrink by them.
bool shrink_by_ring(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream);
// The one to take for M rows when nothing has been measured.
const SmallKernel& likely_kernel(const Matmul& matmul, size_t shared_limit, int multiprocessors);

}  // namespace lockstep::kernels::cuda
