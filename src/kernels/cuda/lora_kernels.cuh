// Matmuls with one small dimension, the rank, for any number of rows and any alignment. Each source file that includes
// this gets its own copy of the kernels.
#pragma once

#include "kernels/cuda/lora_pairs.cuh"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {
namespace {

using Rows = LoraRows;

// ---- which rows a block handles, and of which pair ----

// blockIdx.y counts the tiles of all rows.
struct OneAdapter {
  PairMatmuls matmuls;

  __device__ int64_t row_begin(int height) const { return int64_t{blockIdx.y} * height; }
  __device__ int64_t row_end(const Rows& rows) const { return rows.count; }
  __device__ int find(int64_t slot, int) const { return matmuls.find(slot); }
  __device__ const PairMatmul& at(int p) const { return matmuls.pair[p]; }
  __device__ int count() const { return matmuls.count; }
};

// blockIdx.y is the tile.
struct ManyAdapters {
  const LoraTile* tiles;
  const LoraSite* sites;  // those of the first adapter at this site
  int64_t num_sites;
  Operand x;  // of all rows
  bool expand;

  __device__ const LoraSite& site() const { return sites[tiles[blockIdx.y].adapter * num_sites]; }
  __device__ int64_t row_begin(int) const { return tiles[blockIdx.y].row_begin; }
  __device__ int64_t row_end(const Rows&) const { return tiles[blockIdx.y].row_begin + tiles[blockIdx.y].rows; }
  // Returns -1 if the tile has no such slot.
  __device__ int find(int64_t slot, int pad) const {
    if (tiles[blockIdx.y].rows == 0) return -1;
    const LoraSite& pairs = site();
    for (int p = 0; p < pairs.count; ++p) {
      const int64_t slots = ((expand ? pairs.pair[p].out : pairs.pair[p].rank) + pad - 1) / pad * pad;
      if (slot < slots) return p;
      slot -= slots;
    }
    return -1;
  }
  __device__ PairMatmul at(int p) const {
    const LoraSite& pairs = site();
    const LoraSitePair& pair = pairs.pair[p];
    const int pad = expand ? 64 : 16;
    PairMatmul matmul;
    int64_t h_begin = 0;
    for (int before = 0; before < p; ++before) {
      matmul.first_slot += ((expand ? pairs.pair[before].out : pairs.pair[before].rank) + pad - 1) / pad * pad;
      h_begin += pairs.pair[before].rank;
    }
    const auto* const a = static_cast<const bf16*>(pair.a);
    const auto* const b = static_cast<const bf16*>(pair.b);
    const int64_t rows = tiles[blockIdx.y].row_begin + tiles[blockIdx.y].rows;
    if (expand) {
      matmul.x = {x.data + h_begin, x.stride, rows, pair.rank, x.aligned && h_begin % 8 == 0 && pair.rank % 8 == 0};
      matmul.b = {b, pair.out, pair.rank, pair.out, reinterpret_cast<uintptr_t>(b) % 16 == 0 && pair.out % 8 == 0};
      matmul.y_begin = pair.out_begin, matmul.y_cols = pair.out, matmul.scale = pair.scale;
    } else {
      matmul.x = {x.data, x.stride, rows, pair.in, x.aligned && pair.in % 8 == 0};
      matmul.b = {a, pair.in, pair.rank, pair.in, reinterpret_cast<uintptr_t>(a) % 16 == 0 && pair.in % 8 == 0};
      matmul.y_begin = h_begin, matmul.y_cols = pair.rank;
    }
    return matmul;
  }
  __device__ int count() const { return site().count; }
};

// ---- down-projection: a block has 16 slots of one pair and kTileRows rows, and iterates over the contraction ----

constexpr int kSlots = 16, kReduceThreads = 128;

template <int kTileRows>
struct ReduceShape {
  static constexpr int kDepth = 128, kStages = kTileRows == 16 ? 8 : 4;
  static constexpr int kXElements = kTileRows * tile_stride(kDepth);
  static constexpr int kStageElements = kXElements + kSlots * tile_stride(kDepth);
  static constexpr size_t kSharedBytes = sizeof(bf16) * kStages * kStageElements;
};

// All four warps copy; one warp per 16 rows multiplies.
template <int kTileRows, class Source>
__global__ void __launch_bounds__(kReduceThreads) reduce_tiles(const __grid_constant__ Source source, Rows rows) {
  using S = ReduceShape<kTileRows>;
  extern __shared__ __align__(16) bf16 shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp_row = thread / 32 * 16;
  const int64_t slot = int64_t{blockIdx.x} * kSlots, row0 = source.row_begin(kTileRows);
  const int which = source.find(slot, kSlots);
  if (which < 0) return begin_early();
  const PairMatmul& pair = source.at(which);
  const int64_t col0 = slot - pair.first_slot;

  const auto load_adapter = [&](int step, int stage) {
    load_tile<kSlots, S::kDepth, kReduceThreads, false>(shared + stage * S::kStageElements + S::kXElements, pair.b,
                                                        col0, int64_t{step} * S::kDepth, thread);
  };
  const int steps = static_cast<int>((pair.x.cols + S::kDepth - 1) / S::kDepth);
  // The adapter may be read before earlier kernels have ended: it does not change while a batch runs.
  const int early = min(steps, S::kStages - 1);
  let_next_begin();
  for (int step = 0; step < early; ++step) load_adapter(step, step);
  wait_for_previous();
  const auto load = [&](int step, int stage) {
    if (step >= early) load_adapter(step, stage);
    load_tile<kTileRows, S::kDepth, kReduceThreads, false>(shared + stage * S::kStageElements, pair.x, row0,
                                                           int64_t{step} * S::kDepth, thread);
  };
  float acc[1][2][4] = {};
  const auto compute = [&](int, int stage) {
    const bf16* const tile = shared + stage * S::kStageElements;
    if (warp_row < kTileRows)
      tile_chain<1, 2, S::kDepth, false>(acc, tile + warp_row * tile_stride(S::kDepth), tile_stride(S::kDepth),
                                         tile + S::kXElements, tile_stride(S::kDepth), lane);
  };
  pipeline<S::kStages>(steps, load, compute);

  if (warp_row >= kTileRows) return;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t row = row0 + warp_row + lane / 4 + e / 2 * 8, col = col0 + 8 * j + lane % 4 * 2 + e % 2;
      if (row < source.row_end(rows) && col < pair.y_cols)
        rows.y[row * rows.stride + pair.y_begin + col] = __float2bfloat16_rn(__fmul_rn(pair.scale, acc[0][j][e]));
    }
}

// ---- up-projection: a block has 64 rows x 64 columns of y, four warps of 32 x 32 ----

constexpr int kUpdateStages = 3, kUpdateThreads = 128;
constexpr int kYTile = 64 * tile_stride(64);

template <int kDepth>
constexpr int kUpdateStage = 64 * tile_stride(kDepth) + kDepth* tile_stride(64);
template <int kDepth>
constexpr size_t kUpdateShared = sizeof(bf16) * (kYTile + kUpdateStages * kUpdateStage<kDepth>);

__device__ void store_tile(const bf16* tile, const Operand& y, int64_t row0, int64_t col0, int thread) {
  bf16* const to = const_cast<bf16*>(y.data);
  for (int i = thread; i < 64 * 8; i += kUpdateThreads) {
    const int64_t row = row0 + i / 8, col = col0 + i % 8 * 8;
    const bf16* const from = tile + i / 8 * tile_stride(64) + i % 8 * 8;
    if (row >= y.rows || col >= y.cols) continue;
    if (y.aligned)
      *reinterpret_cast<uint4*>(to + row * y.stride + col) = *reinterpret_cast<const uint4*>(from);
    else
      for (int e = 0; e < 8 && col + e < y.cols; ++e) to[row * y.stride + col + e] = from[e];
  }
}

// kOwnColumns (lora_expand): the block's columns belong to one pair. Else (lora_shrink_backward) all pairs add to the
// same columns. Every pair takes `chunks` steps of kDepth ranks.
template <bool kOwnColumns, int kDepth, class Source>
__global__ void __launch_bounds__(kUpdateThreads) update(const __grid_constant__ Source source, Rows rows, int chunks) {
  extern __shared__ __align__(16) bf16 shared[];
  constexpr int kStage = kUpdateStage<kDepth>, kXTile = 64 * tile_stride(kDepth);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_row = warp / 2 * 32, warp_col = warp % 2 * 32;
  const int64_t slot = int64_t{blockIdx.x} * 64, row0 = source.row_begin(64);
  const int first = kOwnColumns ? source.find(slot, 64) : 0, count = kOwnColumns ? 1 : source.count();
  if (first < 0) return begin_early();
  const PairMatmul& columns = source.at(first);
  const auto pair_of = [&](int step) -> const PairMatmul& {
    if constexpr (kOwnColumns)
      return columns;
    else
      return source.at(step / chunks);
  };
  const int64_t col0 = slot - columns.first_slot;
  bf16* const y_tile = shared;
  Operand y{rows.y + columns.y_begin, rows.stride, source.row_end(rows), columns.y_cols, false};
  y.aligned = reinterpret_cast<uintptr_t>(y.data) % 16 == 0 && y.stride % 8 == 0 && y.cols % 8 == 0;

  const auto load_adapter = [&](int step, int stage) {
    const PairMatmul& pair = pair_of(step);
    bf16* const b = shared + kYTile + stage * kStage + kXTile;
    const int64_t k = int64_t{step % chunks} * kDepth;
    load_tile<kDepth, 64, kUpdateThreads, true>(b, pair.b, k, col0, thread);
  };
  const int early = min(count * chunks, kUpdateStages - 1);  // steps whose adapter data is loaded first
  let_next_begin();
  for (int step = 0; step < early; ++step) load_adapter(step, step);
  wait_for_previous();
  load_tile<64, 64, kUpdateThreads, false>(y_tile, y, row0, col0, thread);
  const auto load = [&](int step, int stage) {
    if (step >= early) load_adapter(step, stage);
    load_tile<64, kDepth, kUpdateThreads, false>(shared + kYTile + stage * kStage, pair_of(step).x, row0,
                                                 int64_t{step % chunks} * kDepth, thread);
  };
  float acc[2][4][4] = {}, sum[2][4][4] = {};
  const auto compute = [&](int step, int stage) {
    const bf16* const x = shared + kYTile + stage * kStage + warp_row * tile_stride(kDepth);
    const bf16* const b = shared + kYTile + stage * kStage + kXTile + warp_col;
    tile_chain<2, 4, kDepth, true>(acc, x, tile_stride(kDepth), b, tile_stride(64), lane);
    if ((step + 1) % chunks != 0) return;
    const float scale = pair_of(step).scale;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum[i][j][e] = __fmaf_rn(scale, acc[i][j][e], sum[i][j][e]);
          acc[i][j][e] = 0;
        }
  };
  pipeline<kUpdateStages>(count * chunks, load, compute);

#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + 16 * i + lane / 4 + 8 * half, col = warp_col + 8 * j + lane % 4 * 2;
        auto* const at = reinterpret_cast<__nv_bfloat162*>(y_tile + row * tile_stride(64) + col);
        const float2 before = __bfloat1622float2(*at);
        *at = __floats2bfloat162_rn(__fadd_rn(before.x, sum[i][j][2 * half]),
                                    __fadd_rn(before.y, sum[i][j][2 * half + 1]));
      }
  __syncthreads();
  store_tile(y_tile, y, row0, col0, thread);
}

}  // namespace
}  // namespace lockstep::kernels::cuda
