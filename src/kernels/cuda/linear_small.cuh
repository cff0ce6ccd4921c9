// Our own matmul kernels, designed for few rows, where reading the weight once at memory bandwidth is the limit.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cuda/tile.cuh"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {

// The epilogue: y = (acc + bias) + residual in f32, rounded once.
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

// The norm of a matmul's only row, which its launch computes (linear_row_norm.cuh). Nothing where weight is nullptr.
struct RowNorm {
  const float* weight = nullptr;  // [x.cols], aligned to 16 bytes
  float eps = 0;
};
// linear_ring.cu keeps a normalized row in shared memory as a whole.
inline constexpr int64_t kWidestRingNorm = 4096;

inline bool suits_ring_norm(const Matmul& p, const RowNorm& norm) {
  return p.x.rows == 1 && p.x.aligned && p.x.cols % 8 == 0 && p.x.cols <= kWidestRingNorm &&
         reinterpret_cast<uintptr_t>(norm.weight) % 16 == 0;
}

// The pairs of an adapter that a matmul's launch computes: h = x A, all pairs side by side in one matrix, and either h
// is stored or, with an exchange, y += scale h B. Without pairs there is nothing to compute.
inline constexpr int kMaxShrinks = kMaxSitePairs;
inline constexpr int kHColumns = 16;  // columns of h per block

// Device memory through which the blocks of a launch that compute h hand it to those that add h B
// (linear_ring_adapter.cuh); zero between launches.
struct HExchange {
  uint2* h = nullptr;
  uint32_t* received = nullptr;  // number of blocks that have received h

  static constexpr int64_t kColumnBlocks = kMaxShrinks * kMaxStackedRank / kHColumns;  // at most
  static constexpr int64_t bytes_of_column_block(int64_t tokens) { return tokens * kHColumns * 2; }
};

struct LoraShrinks {
  std::span<const LoraPair> pairs;  // aligned A
  bf16* h = nullptr;
  int64_t h_stride = 0;
  HExchange exchange = {};  // needs even ranks up to kMaxStackedRank and outputs in tiles of 16

  bool expands() const { return exchange.h != nullptr; }

  int64_t column_blocks() const {
    int64_t across = 0;
    for (const LoraPair& pair : pairs) across += (pair.rank() + kHColumns - 1) / kHColumns;
    return across;
  }
  // Blocks of `tokens` rows each that compute h.
  int64_t blocks(int64_t rows, int64_t tokens) const { return column_blocks() * ((rows + tokens - 1) / tokens); }
  // Column blocks of h that a block of so many neighbouring outputs receives, at most.
  int64_t needed_blocks(int64_t outputs) const {
    int64_t most = 0, narrowest = outputs;
    for (const LoraPair& pair : pairs) {
      most = std::max(most, (pair.rank() + kHColumns - 1) / kHColumns);
      narrowest = std::min(narrowest, pair.b[1]);
    }
    // Outputs of three pairs would include all of the second one's.
    const bool of_two = narrowest >= outputs && std::ranges::is_sorted(pairs, {}, &LoraPair::out_begin);
    return of_two ? std::min(column_blocks(), 2 * most) : column_blocks();
  }
};

// A tile shape: one block computes `tokens` x `rows` outputs.
struct SmallKernel {
  int tokens = 0, rows = 0;
  size_t shared_bytes = 0;
  void (*launch)(const Matmul&, cudaStream_t) = nullptr;
  // linear_ring.cu: needs operands that suit boxes_map, starts early, computes an adapter in the same launch.
  void (*launch_adapted)(const Matmul&, const LoraShrinks&, cudaStream_t) = nullptr;
  int64_t received_blocks = 0;  // linear_ring.cu: column blocks of h that a block can receive
  // linear_ring.cu, kernels of up to 8 rows: one row that is normalized first, with an adapter that this launch adds,
  // or nullptr. y is bf16.
  void (*launch_normed)(const Matmul&, const RowNorm&, const LoraShrinks*, cudaStream_t) = nullptr;
  // linear_ring.cu: of the weight, in shared memory at once; by launch_normed as many or all that it takes.
  int64_t held_columns = 0;

  bool ring() const { return launch_adapted != nullptr; }
  // Outputs n and n + 8 of a block, counted from its first, must have the same pair, for n % 16 < 8.
  bool can_expand(const LoraShrinks& shrinks) const {
    return ring() && shrinks.needed_blocks(rows) <= received_blocks &&
           (rows % 16 == 0 || (shrinks.pairs.size() == 1 && shrinks.pairs.front().out_begin == 0));
  }
};

// Up to so many rows a matmul waits for launches and chains rather than for memory.
inline constexpr int64_t kFewRows = 8;
// Whether a matmul of few rows that is launched as so many blocks (those that compute h are not counted) can load all
// of its weight while the launch ahead computes: they take at most half of the multiprocessors, and each holds its part
// of the weight in shared memory.
inline bool loads_beside(const Matmul& p, int64_t blocks, int64_t held_columns, int multiprocessors) {
  return p.x.rows <= kFewRows && 2 * blocks <= multiprocessors && held_columns >= p.x.cols;
}

// The kernels for plain weights, and one that takes any matmul; all give the same bits.
std::span<const SmallKernel> small_kernels();
const SmallKernel& any_kernel(bool transposed);
// linear_ring.cu: for `rows` rows with p's matrices; empty if the GPU, the matrices or more than kRingRows rows are not
// supported. kRingTileRows rows are one tile of tokens; SwiGLU is in the launch only there (linear_ring_swiglu.cu).
inline constexpr int64_t kRingTileRows = 64, kRingRows = 256;
inline constexpr int kRingHTokens = 16;  // tokens per block that computes h
std::span<const SmallKernel> ring_kernels(const Matmul& p, int64_t rows);
// linear_ring.cu: only the adapter's h; false if the shape is not supported.
bool ring_h(const Operand& x, const LoraShrinks& shrinks, cudaStream_t stream);
// linear.cu: lora_shrink by these kernels.
bool shrink_by_ring(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream);
// The kernel to use for M rows when nothing has been measured.
const SmallKernel& likely_kernel(const Matmul& matmul, int multiprocessors);

}  // namespace lockstep::kernels::cuda
