// Two kinds of matmul with one small dimension, the rank.
//   down-projection (lora_shrink, lora_expand_backward): limited by reading x once. A block keeps its rows and iterates
//   over the contraction in order. Up to 64 rows the launch of the base's matmul can compute h too (linear_ring.cu).
//   up-projection (lora_expand, lora_shrink_backward): limited by reading and writing y once.
// Many rows of aligned operands with small ranks: lora_large.cuh.
#include "kernels/cuda/library.h"
#include "kernels/cuda/linear_small.cuh"
#include "kernels/cuda/lora_expand.h"
#include "kernels/cuda/lora_kernels.cuh"
#include "kernels/cuda/lora_large.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

// ---- launches ----

unsigned tiles_of(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

template <int kTileRows, class Source>
void launch_reduce(const Source& source, int64_t slots, int64_t tiles, const Rows& rows, Stream& stream) {
  constexpr size_t kShared = ReduceShape<kTileRows>::kSharedBytes;
  constexpr auto kKernel = reduce_tiles<kTileRows, Source>;
  allow_shared<kKernel>(kShared);
  launch_early(kKernel, dim3(tiles_of(slots, kSlots), tiles_of(tiles, 1)), kReduceThreads, kShared, stream_of(stream),
               source, rows);
}

// together: all pairs read the same x.
void reduce(const PairMatmuls& matmuls, const Rows& rows, bool together, Stream& stream) {
  constexpr int64_t kFewRows = 512;
  if (reduce_large(matmuls, rows, together, library_of(stream).multiprocessors, stream_of(stream))) return;
  const OneAdapter all{matmuls};
  if (rows.count <= kFewRows)
    launch_reduce<16>(all, matmuls.slots, tiles_of(rows.count, 16), rows, stream);
  else
    launch_reduce<64>(all, matmuls.slots, tiles_of(rows.count, 64), rows, stream);
}

template <bool kOwnColumns, int kDepth>
void launch_update(const PairMatmuls& matmuls, const Rows& rows, int64_t cols, int64_t rank, Stream& stream) {
  constexpr size_t kShared = kUpdateShared<kDepth>;
  constexpr auto kKernel = update<kOwnColumns, kDepth, OneAdapter>;
  allow_shared<kKernel>(kShared);
  const dim3 grid(tiles_of(cols, 64), tiles_of(rows.count, 64));
  launch_early(kKernel, grid, kUpdateThreads, kShared, stream_of(stream), OneAdapter{matmuls}, rows,
               static_cast<int>(tiles_of(rank, kDepth)));
}

// kOwnColumns: each matmul adds to its own columns; otherwise all add to the same `cols`.
template <bool kOwnColumns>
void add_matmuls(const PairMatmuls& matmuls, const Rows& rows, int64_t cols, int64_t rank, Stream& stream) {
  (rank <= 32 ? launch_update<kOwnColumns, 32> : launch_update<kOwnColumns, 64>)(matmuls, rows, cols, rank, stream);
}

int64_t largest_rank(std::span<const LoraPair> pairs) {
  int64_t rank = 0;
  for (const LoraPair& pair : pairs) rank = std::max(rank, pair.rank());
  return rank;
}

// The columns of h that a pair has, and how many of them each of its adapters has.
struct SharedRanks {
  struct {
    int begin, ranks_each;
  } pair[kMaxSitePairs];
  int count, columns;
  const int2* rank_rows;
};

// Zeros where a row is not of the column's adapter.
__global__ void keep_rank_rows_kernel(bf16* h, int64_t stride, const __grid_constant__ SharedRanks ranks) {
  begin_early();
  const auto row = static_cast<int>(blockIdx.x);
  for (int column = static_cast<int>(threadIdx.x); column < ranks.columns; column += static_cast<int>(blockDim.x)) {
    int p = 0;
    while (p + 1 < ranks.count && column >= ranks.pair[p + 1].begin) ++p;
    const int2 rows = ranks.rank_rows[(column - ranks.pair[p].begin) / ranks.pair[p].ranks_each];
    if (row < rows.x || row >= rows.y) h[row * stride + column] = __float2bfloat16_rn(0.0f);
  }
}

void keep_rank_rows(const Tensor& h, std::span<const LoraPair> pairs, Stream& stream) {
  if (pairs.front().rank_rows.rows == nullptr) return;
  SharedRanks ranks{.rank_rows = reinterpret_cast<const int2*>(pairs.front().rank_rows.rows)};
  for (const LoraPair& pair : pairs) {
    ranks.pair[ranks.count++] = {ranks.columns, static_cast<int>(pair.rank() / pair.rank_rows.adapters)};
    ranks.columns += static_cast<int>(pair.rank());
  }
  launch_early(keep_rank_rows_kernel, static_cast<unsigned>(h[0]), 64, 0, stream_of(stream), data_of<bf16>(h),
               h.row_stride, ranks);
}

Rows rows_of(const Tensor& y) {
  return {data_of<bf16>(y), y.row_stride, y[0]};
}

}  // namespace

void lora_shrink(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream) {
  if (x[0] == 0 || pairs.empty()) return;
  if (shrink_by_ring(h, x, pairs, stream)) return check_launch("lora_shrink", {h, x});
  require_few_pairs(pairs, "lora_shrink");
  PairMatmuls matmuls;
  int64_t begin = 0;
  for (const LoraPair& pair : pairs) {
    matmuls.add({.x = operand(x), .b = operand(pair.a), .y_begin = begin, .y_cols = pair.rank()}, kSlots);
    begin += pair.rank();
  }
  reduce(matmuls, rows_of(h), true, stream);
  keep_rank_rows(h, pairs, stream);
  check_launch("lora_shrink", {h, x});
}

void lora_expand_backward(Tensor dh, ConstTensor dy, std::span<const LoraPair> pairs, Stream& stream) {
  if (dy[0] == 0 || pairs.empty()) return;
  require_few_pairs(pairs, "lora_expand_backward");
  PairMatmuls matmuls;
  int64_t begin = 0;
  for (const LoraPair& pair : pairs) {
    matmuls.add({.x = columns_of(dy, pair.out_begin, pair.b[1]),
                 .b = operand(pair.b),
                 .y_begin = begin,
                 .y_cols = pair.rank(),
                 .scale = pair.scale},
                kSlots);
    begin += pair.rank();
  }
  reduce(matmuls, rows_of(dh), false, stream);
  check_launch("lora_expand_backward", {dh, dy});
}

void lora_expand(Tensor y, ConstTensor h, std::span<const LoraPair> pairs, Stream& stream) {
  if (y[0] == 0 || pairs.empty()) return;
  if (expand_by_strips(y, {.h = h, .pairs = pairs}, stream)) return check_launch("lora_expand", {y, h});
  require_few_pairs(pairs, "lora_expand");
  PairMatmuls matmuls;
  int64_t begin = 0;
  for (const LoraPair& pair : pairs) {
    matmuls.add({.x = columns_of(h, begin, pair.rank()),
                 .b = operand(pair.b),
                 .y_begin = pair.out_begin,
                 .y_cols = pair.b[1],
                 .scale = pair.scale},
                64);
    begin += pair.rank();
  }
  add_matmuls<true>(matmuls, rows_of(y), matmuls.slots, largest_rank(pairs), stream);
  check_launch("lora_expand", {y, h});
}

void lora_shrink_tiles(Tensor h, ConstTensor x, const LoraTiles& tiles, int64_t site, Stream& stream) {
  const ManyAdapters all{tiles.tiles, tiles.sites + site, tiles.num_sites, operand(x), false};
  launch_reduce<kLoraTileRows>(all, kMaxSitePairs * tiles.max_rank, tiles.num_tiles, rows_of(h), stream);
  check_launch("lora_shrink_tiles", {h, x});
}

template <int kDepth>
void launch_expand_tiles(Tensor y, ConstTensor h, const LoraTiles& tiles, int64_t site, Stream& stream) {
  constexpr size_t kShared = kUpdateShared<kDepth>;
  constexpr auto kKernel = update<true, kDepth, ManyAdapters>;
  allow_shared<kKernel>(kShared);
  // Each pair's columns begin a new tile.
  const dim3 grid(tiles_of(y[1], 64) + kMaxSitePairs - 1, tiles_of(tiles.num_tiles, 1));
  launch_early(kKernel, grid, kUpdateThreads, kShared, stream_of(stream),
               ManyAdapters{tiles.tiles, tiles.sites + site, tiles.num_sites, operand(h), true}, rows_of(y),
               static_cast<int>(tiles_of(tiles.max_rank, kDepth)));
}

void lora_expand_tiles(Tensor y, ConstTensor h, const LoraTiles& tiles, int64_t site, Stream& stream) {
  (tiles.max_rank <= 32 ? launch_expand_tiles<32> : launch_expand_tiles<64>)(y, h, tiles, site, stream);
  check_launch("lora_expand_tiles", {y, h});
}

void lora_shrink_backward(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream) {
  if (dx[0] == 0 || pairs.empty()) return;
  if (shrink_backward_by_strips(dx, dh, pairs, stream)) return check_launch("lora_shrink_backward", {dx, dh});
  require_few_pairs(pairs, "lora_shrink_backward");
  PairMatmuls matmuls;
  int64_t begin = 0;
  for (const LoraPair& pair : pairs) {
    matmuls.add({.x = columns_of(dh, begin, pair.rank()), .b = operand(pair.a), .y_cols = dx[1]}, 64);
    begin += pair.rank();
  }
  add_matmuls<false>(matmuls, rows_of(dx), dx[1], largest_rank(pairs), stream);
  check_launch("lora_shrink_backward", {dx, dh});
}

}  // namespace lockstep::kernels::cuda
