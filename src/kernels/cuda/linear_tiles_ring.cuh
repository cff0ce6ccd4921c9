// The ring buffer of a matmul of many rows (linear_tiles.cu): what fills a stage, and what multiplies it.
#pragma once

#include "kernels/cuda/linear_tiles.cuh"

namespace lockstep::kernels::cuda {

// ---- the warp that loads ----

template <bool kTransposed, Adds kAdds>
__device__ __forceinline__ void load_step(const TileMaps& maps, const TileCall& call, const CopyRing& ring,
                                          const TileWalk& at, int step) {
  const bool computes = kAdds == Adds::computed && at.begins_run();
  barrier_expect(ring.full(), kStageBytes + (computes ? kRanksBytes : 0));
  if (computes) copy_box(ring.at() + kStageBytes, maps.a, step * 64, 0, ring.full());
  copy_box(ring.at(), maps.x, step * 64, at.row, ring.full());
  const uint32_t w = ring.at() + kXBytes;
  if constexpr (kTransposed) {  // slabs of columns; this block loads half of the rows of each
#pragma unroll
    for (int s = 0; s < kTileSlabs; ++s)
      copy_box_to_both(w + s * kSlabBytes + at.rank * kSlabBytes / 2, maps.w, at.column + s * kSlab,
                       step * 64 + at.rank * 32, ring.full());
  } else {
    copy_box_to_both(w + at.rank * kWBytes / 2, maps.w, step * 64, at.column + at.rank * call.half_step, ring.full());
  }
}

// h of the tile's rows in the place of x, unless it is computed, and B in that of the weight. Nothing here may wait:
// the tile's last steps are as long as this load takes.
template <Adds kAdds>
__device__ __forceinline__ void load_adapter(const TileMaps& maps, const TileCall& call, const CopyRing& ring,
                                             const TileWalk& at) {
  const auto each = [&](const auto& f) {
#pragma unroll
    for (int s = 0; s < kTileSlabs; ++s) {
      const int column = call.slab_column(at.column, s);
      if (column >= call.columns) continue;
      const auto with = [&](int p, const TilePair& pair) { f(s, p, pair, column); };
      if constexpr (kAdds != Adds::pairs) {
        call.with_pair_of(column, with);
      } else {
#pragma unroll
        for (int p = 0; p < kMaxSitePairs; ++p)
          if (p < call.pairs) with(p, call.pair[p]);
      }
    }
  };
  uint32_t bytes = kAdds == Adds::computed ? 0 : kXBytes;
  each([&](int, int, const TilePair& pair, int) { bytes += pair.groups * 16 * 128; });
  barrier_expect(ring.full(), bytes);
  if constexpr (kAdds != Adds::computed) copy_box(ring.at(), maps.h, 0, at.row, ring.full());
  each([&](int s, int p, const TilePair& pair, int column) {
    copy_box(ring.at() + kXBytes + s * kSlabBytes + pair.b_group * 16 * 128, maps.b[p], column - pair.begin, 0,
             ring.full());
  });
}

inline constexpr int kResidualSlabs = 2;  // of a stage
inline constexpr int kResidualStages = kTileSlabs / kResidualSlabs;

__device__ __forceinline__ void load_residual(const TileMaps& maps, const CopyRing& ring, const TileWalk& at,
                                              int stage) {
  barrier_expect(ring.full(), kResidualSlabs * 2 * kSlabBytes);
#pragma unroll
  for (int s = 0; s < kResidualSlabs; ++s)
    copy_box(ring.at() + s * 2 * kSlabBytes, maps.residual, at.column + (stage * kResidualSlabs + s) * kSlab, at.row,
             ring.full());
}

// ---- the warpgroups that compute ----

__device__ __forceinline__ void release(uint32_t empty, int lane) {
  __syncwarp();
  if (lane < kPairedBlocks) barrier_arrive_at(empty, lane);
}

using RankSums = float[kComputedRanks / 8][4];  // of h of a warpgroup's 64 rows

// A tile's first step, which does not read the sums.
template <bool kTransposed>
__device__ __forceinline__ void multiply_first(Sums& sums, const CopyRing& ring, int block) {
  barrier_wait(ring.full(), ring.parity);
  const uint64_t x = tile_descriptor(ring.at()) + block * kNextRows, w = tile_descriptor(ring.at() + kXBytes);
  tile_step<kTransposed, true>(sums, x, w, false);
#pragma unroll
  for (int k = 1; k < 4; ++k)
    tile_step<kTransposed>(sums, x + column_step(k), w + (kTransposed ? row_step(k) : column_step(k)), true);
  wgmma_commit();
}

// x W^T of the rows of block `block` of 64, and (kComputes) x A. The ring moves on behind the tile's steps.
// kFirstApart: the first step is code of its own. Otherwise the compiler takes the sums of the tile before for an input
// and keeps their registers, so that the epilogue is left with half of all.
template <bool kTransposed, bool kComputes, bool kFirstApart = false>
__device__ __forceinline__ void accumulate(Sums& sums, RankSums& h, CopyRing& ring, int steps, int block, int lane) {
  uint32_t previous = 0;  // the `empty` barrier of the step before
  if constexpr (kComputes) {
#pragma unroll
    for (auto& chunk : h)
#pragma unroll
      for (float& sum : chunk) sum = 0;
    pin(h);
  }
  wgmma_fence();
  if constexpr (kFirstApart) {
    multiply_first<kTransposed>(sums, ring, block);
    previous = ring.empty();
    ring.next();
  }
#pragma unroll 1
  for (int step = kFirstApart ? 1 : 0; step < steps; ++step, ring.next()) {
    barrier_wait(ring.full(), ring.parity);
    const uint64_t x = tile_descriptor(ring.at()) + block * kNextRows, w = tile_descriptor(ring.at() + kXBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      tile_step<kTransposed>(sums, x + column_step(k), w + (kTransposed ? row_step(k) : column_step(k)),
                             step > 0 || k > 0);
      if constexpr (kComputes)
        wgmma_narrow<false>(h, x + column_step(k), tile_descriptor(ring.at() + kStageBytes) + column_step(k));
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (previous) release(previous, lane);
    previous = ring.empty();
  }
  wgmma_wait<0>();
  pin(sums);
  if constexpr (kComputes) pin(h);
  release(previous, lane);
}

// A stage that the epilogue reads.
struct HeldStage {
  uint32_t at = 0, empty = 0;

  __device__ static HeldStage take(CopyRing& ring) {
    barrier_wait(ring.full(), ring.parity);
    const HeldStage held{ring.at(), ring.empty()};
    ring.next();
    return held;
  }
};

}  // namespace lockstep::kernels::cuda
