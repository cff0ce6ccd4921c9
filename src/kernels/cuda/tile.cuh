// How a matmul loads tiles into shared memory, and how a warp multiplies them. Each output has one accumulator; the
// products are added to it in the order of k, 16 at a time (one mma.sync).
#pragma once

#include "kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

// A row-major matrix in device memory. Elements outside rows x cols count as zeros.
struct Operand {
  const bf16* data = nullptr;
  int64_t stride = 0;
  int64_t rows = 0, cols = 0;
  bool aligned = false;  // every 8 columns (0-7, 8-15, ...) can be loaded as one aligned vector of 16 bytes
};

inline bool aligned_16(const void* data, int64_t stride, int64_t cols) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0 && cols % 8 == 0;
}
inline Operand operand(const bf16* data, int64_t stride, int64_t rows, int64_t cols) {
  return {data, stride, rows, cols, aligned_16(data, stride, cols)};
}
inline Operand operand(const ConstTensor& x) {
  return operand(data_of<bf16>(x), x.row_stride, x[0], x[1]);
}

// Rows of a tile are padded by 16 bytes: the eight row addresses of an ldmatrix then fall in different
// banks for every width used here (16, 32, 64, 128, 256).
__host__ __device__ constexpr int tile_stride(int cols) {
  return cols + 8;
}

// Copies 8 elements of row `row` from column `col` on, zeros outside the matrix.
__device__ __forceinline__ uint4 load_8(const Operand& from, int64_t row, int64_t col) {
  union {
    uint4 vector;
    uint16_t element[8];
  } v;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const bool inside = row < from.rows && col + e < from.cols;
    v.element[e] = inside ? reinterpret_cast<const uint16_t*>(from.data)[row * from.stride + col + e] : uint16_t{0};
  }
  return v.vector;
}

__device__ __forceinline__ void load_chunk(bf16* to, const Operand& from, int64_t row, int64_t col) {
  if (from.aligned) {
    const bool inside = row < from.rows && col < from.cols;
    copy_async_16(to, inside ? from.data + row * from.stride + col : from.data, inside);
  } else {
    *reinterpret_cast<uint4*>(to) = load_8(from, row, col);
  }
}

// Copies kRows x kCols from (row0, col0), by kThreads threads; a thread stays in the same 8 columns, so that a step
// costs one addition. Rows of a tile beyond the matrix need no zeros unless they are part of the contraction: they
// affect only outputs that are not stored.
template <int kRows, int kCols, int kThreads, bool kZeroRows>
__device__ __forceinline__ void load_tile(bf16* tile, const Operand& from, int64_t row0, int64_t col0, int thread) {
  constexpr int kChunks = kCols / 8, kStep = kThreads / kChunks, kSteps = kRows / kStep;
  static_assert(kThreads % kChunks == 0 && kRows % kStep == 0);
  const int row = thread / kChunks, col = thread % kChunks * 8;
  bf16* const to = tile + row * tile_stride(kCols) + col;
  const int64_t rows = from.rows - row0 - row;  // counted from this thread's first row
  if (from.aligned) {
    const bool col_inside = col0 + col < from.cols;
    const int64_t step = kStep * from.stride;
    const bf16* source = from.data + (row0 + row) * from.stride + col0 + col;
#pragma unroll
    for (int i = 0; i < kSteps; ++i, source += step) {
      const bool inside = i * kStep < rows;
      if (kZeroRows)
        copy_async_16(to + i * kStep * tile_stride(kCols), inside && col_inside ? source : from.data,
                      inside && col_inside);
      else if (inside)
        copy_async_16(to + i * kStep * tile_stride(kCols), col_inside ? source : from.data, col_inside);
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kSteps; ++i)
      if (kZeroRows || i * kStep < rows)
        *reinterpret_cast<uint4*>(to + i * kStep * tile_stride(kCols)) =
            load_8(from, row0 + row + i * kStep, col0 + col);
  }
}

// acc += x w^T over kDepth of the contraction. x: this warp's 16 kMTiles rows; w: its 8 kNTiles outputs, row-major
// [output][k], or [k][output] when kTransposed.
//   a: ldmatrix's four 8x8 blocks are (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15),
//      so lane l points at row l % 16, k l / 16 * 8.
//   b: the four blocks are k 0-7, 8-15, 16-23, 24-31 of 8 outputs: two groups of 16. Plain: lane l points at output
//      l % 8, k l / 8 * 8. Transposed: at k l; the transposing load then gives a lane k 2t, 2t + 1 of output g.
template <int kMTiles, int kNTiles, int kDepth, bool kTransposed>
__device__ __forceinline__ void tile_chain(float (&acc)[kMTiles][kNTiles][4], const bf16* x, int x_stride,
                                           const bf16* w, int w_stride, int lane) {
#pragma unroll
  for (int k = 0; k < kDepth; k += 32) {
    uint32_t a[2][kMTiles][4], b[kNTiles][4];
#pragma unroll
    for (int i = 0; i < kMTiles; ++i) {
      const bf16* const row = x + (16 * i + lane % 16) * x_stride + k + lane / 16 * 8;
      ldmatrix_x4(a[0][i], row);
      ldmatrix_x4(a[1][i], row + 16);
    }
#pragma unroll
    for (int j = 0; j < kNTiles; ++j)
      if constexpr (kTransposed)
        ldmatrix_x4_trans(b[j], w + (k + lane) * w_stride + 8 * j);
      else
        ldmatrix_x4(b[j], w + (8 * j + lane % 8) * w_stride + k + lane / 8 * 8);
#pragma unroll
    for (int group = 0; group < 2; ++group)
#pragma unroll
      for (int i = 0; i < kMTiles; ++i)
#pragma unroll
        for (int j = 0; j < kNTiles; ++j) mma_16816(acc[i][j], a[group][i], {b[j][2 * group], b[j][2 * group + 1]});
  }
}

// load(step, stage) issues copies kStages - 1 steps ahead of compute(step, stage). A barrier stands between a stage's
// last use and its next load, and between the end of a load and its use.
template <int kStages, class Load, class Compute>
__device__ __forceinline__ void pipeline(int steps, const Load& load, const Compute& compute) {
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(step, step);
    copy_commit();
  }
  int stage = 0, free_stage = kStages - 1;
  for (int step = 0; step < steps; ++step) {
    copy_wait<kStages - 2>();
    __syncthreads();
    if (step + kStages - 1 < steps) load(step + kStages - 1, free_stage);
    copy_commit();
    compute(step, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    free_stage = free_stage + 1 == kStages ? 0 : free_stage + 1;
  }
}

}  // namespace lockstep::kernels::cuda
