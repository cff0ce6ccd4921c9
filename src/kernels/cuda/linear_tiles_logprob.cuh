// The epilogue of a matmul of many rows whose result are logits (linear_tiles.cu): the sums of each row's piece, as
// softmax_chunk.cuh works them out, and exp(z - largest) in place of z.
#pragma once

#include "kernels/cuda/linear_tiles_epilogue.cuh"
#include "kernels/cuda/softmax_chunk.cuh"

namespace lockstep::kernels::cuda {

static_assert(kTileColumns == kPiece);

// Makes logits z in place, -infinity beyond the vocabulary, stores that of the target, and returns the row's largest.
// Of the two rows that a lane has a quarter of: row lane / 4 of a warp's 16 rows (kHalf 0), or the one eight below.
template <int kHalf>
__device__ __forceinline__ float scale_logits(Sums& sums, const TileCall& call, const TileWalk& at, int row, int lane) {
  const int own = lane % 4 * 2, target = row < call.rows ? call.logprob.targets[row] - at.column : -1;
#pragma unroll
  for (int j = 0; j < kTileColumns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& z = sums[j][2 * kHalf + e];
      z = __fmul_rn(z, call.logprob.scale);
    }
  if (at.column + kTileColumns > call.width)
#pragma unroll
    for (int j = 0; j < kTileColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (at.column + 8 * j + own + e >= call.width) sums[j][2 * kHalf + e] = -INFINITY;
  if (target >= 0 && target < kTileColumns && target % 8 / 2 * 2 == own) {
    float z = 0;
#pragma unroll
    for (int j = 0; j < kTileColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + own + e == target) z = sums[j][2 * kHalf + e];
    call.logprob.target_z[row] = z;
  }
  float part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) part[i] = sums[i][2 * kHalf];
#pragma unroll
  for (int j = 0; j < kTileColumns / 8; ++j)
    part[j % 4] = fmaxf(part[j % 4], fmaxf(sums[j][2 * kHalf], sums[j][2 * kHalf + 1]));
  float largest = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
#pragma unroll
  for (int offset : {2, 1}) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  return largest;
}

// Stores a warp's part of a tile's pieces, and the weights where they are wanted.
template <bool kMoment>
__device__ __forceinline__ void finish_logits(Sums& sums, const TileCall& call, const TileWalk& at,
                                              const WarpRows& mine) {
  const int row = at.row + 64 * mine.block + 16 * mine.warp + mine.lane / 4;
  const float largest[2] = {scale_logits<0>(sums, call, at, row, mine.lane),
                            scale_logits<1>(sums, call, at, row + 8, mine.lane)};
  const float reference[2] = {reference_of(largest[0]), reference_of(largest[1])};
  WeightSum<kMoment> part[2][kChunks];
#pragma unroll
  for (int s = 0; s < kTileSlabs; ++s) {
    Words words;
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float(&z)[4] = sums[kChunks * s + j];
        const float low = part[h][j].add(__fsub_rn(z[2 * h], reference[h]));
        const float high = part[h][j].add(__fsub_rn(z[2 * h + 1], reference[h]));
        words[j][h] = pack_bf16(low, high);
      }
    if (call.y) store_slab(call, at, at.column + s * kSlab, words, mine);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int apart = kChunks / 2; apart > 0; apart /= 2)
#pragma unroll
      for (int j = 0; j < apart; ++j) part[h][j].add(part[h][j + apart]);
#pragma unroll
    for (int offset : {2, 1}) part[h][0].add_lane(offset);
    if (mine.lane % 4 == 0 && row + 8 * h < call.rows)
      call.logprob.pieces[int64_t{row + 8 * h} * call.across + at.column / kPiece] = {largest[h], part[h][0].sum,
                                                                                      part[h][0].moment};
  }
}

}  // namespace lockstep::kernels::cuda
