// Matmuls of many rows with an adapter, y = x W^T + residual + scale h B, in one launch on compute capability 9.0. A
// launch has a block on every multiprocessor, and each computes tile after tile. TMA fills a ring buffer with tiles of
// x and of the weight, which the two blocks of a cluster share; two warpgroups multiply them by wgmma, groups of 16 of
// k in order, as everywhere. After a tile's last step the ring brings what the epilogue adds, the tile's h (where the
// launch does not compute it) and B and its residual, so that nothing has to be waited for. The epilogue rounds as the
// separate ops do: x W^T + residual once, and with h B again. It may also do what follows the matmul: SwiGLU, the sums
// of a softmax, or q/k norm, RoPE and the KV store.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/linear_tiles_epilogue.cuh"
#include "kernels/cuda/linear_tiles_heads.cuh"
#include "kernels/cuda/linear_tiles_logprob.cuh"
#include "kernels/cuda/linear_tiles_ring.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

// ---- the warp that loads ----

template <bool kTransposed, End kEnd, Adds kAdds>
__device__ void load_tiles(const TileMaps& maps, const TileCall& call, CopyRing ring) {
  const auto free_stage = [&] { barrier_wait(ring.empty(), ring.parity ^ 1); };
  wait_for_previous();
#pragma unroll 1
  for (TileWalk at = TileWalk::begin(call, cluster_rank()); !at.ended(call); at.next(call)) {
#pragma unroll 1
    for (int step = 0; step < call.steps; ++step, ring.next()) {
      free_stage();
      load_step<kTransposed, kAdds>(maps, call, ring, at, step);
    }
    if constexpr (kAdds != Adds::nothing) {
      free_stage();
      load_adapter<kAdds>(maps, call, ring, at);
      ring.next();
    }
#pragma unroll 1
    for (int stage = 0; kEnd == End::residual && stage < kResidualStages; ++stage, ring.next()) {
      free_stage();
      load_residual(maps, ring, at, stage);
    }
  }
}

// ---- the warpgroups that compute ----

// In place of TileHeads where the epilogue needs nothing that is loaded before a tile's matmul.
struct NoHeads {
  __device__ NoHeads(const TileCall&, const TileWalk&, const WarpRows&) {}
};

// Adds, rounds and stores a warp's rows of a tile, slab by slab. computed_h: of these rows, with Adds::computed; pairs:
// of the slabs before, gates and ups apart; heads: End::heads.
template <End kEnd, Adds kAdds, class Heads>
__device__ __forceinline__ void finish_tile(const Sums& sums, const TileCall& call, const TileWalk& at, CopyRing& ring,
                                            const WarpRows& mine, const RowRanks& computed_h, ColumnPair (&pairs)[2],
                                            Heads& heads) {
  HeldStage adapter, residual;
  if constexpr (kAdds != Adds::nothing) adapter = HeldStage::take(ring);
  const auto make = [&](Words& words, int s) {
    const int column = call.slab_column(at.column, s);
    ColumnPair& pair = pairs[kEnd == End::swiglu ? s / (kTileSlabs / 2) : 0];
    if ((kAdds == Adds::pair || kAdds == Adds::computed) && !pair.has(column)) pair = ColumnPair::of(call, column);
    round_sums<kEnd == End::residual>(words, sums, s, residual.at + s % kResidualSlabs * 2 * kSlabBytes + mine.row,
                                      mine.lane);
    if constexpr (kAdds != Adds::nothing)
      add_adapter<kAdds>(words, call, pair, adapter.at + mine.row, computed_h, adapter.at + kXBytes + s * kSlabBytes,
                         mine.lane);
  };
#pragma unroll
  for (int s = 0; s < (kEnd == End::swiglu ? kTileSlabs / 2 : kTileSlabs); ++s) {
    if (kEnd == End::residual && s % kResidualSlabs == 0) residual = HeldStage::take(ring);
    Words words;
    make(words, s);
    if (kEnd == End::residual && s % kResidualSlabs == kResidualSlabs - 1) release(residual.empty, mine.lane);
    if constexpr (kEnd == End::swiglu) {
      Words up;
      make(up, s + kTileSlabs / 2);
#pragma unroll
      for (int j = 0; j < kChunks; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) words[j][i] = swiglu_2(words[j][i], up[j][i]);
    }
    if constexpr (kEnd == End::heads)
      heads.take(s, words, call, mine);
    else
      store_slab(call, at, at.column + s * kSlab, words, mine);
  }
  if constexpr (kAdds != Adds::nothing) release(adapter.empty, mine.lane);
  if constexpr (kEnd == End::heads) heads.finish(call);
}

template <bool kTransposed, End kEnd, Adds kAdds>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiled_matmul(const __grid_constant__ TileMaps maps, const __grid_constant__ TileCall call) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    CopyRing ring{.shared = (shared_address(shared) + 1023) / 1024 * 1024,
                  .stage_bytes = kStageBytesWith<kAdds>,
                  .stages = kStages,
                  .slack_bytes = kStoreBytes};
    if (threadIdx.x == 0) ring.init(kReaders);
    cluster_sync();
    let_next_begin();
    if (threadIdx.x < kWarpgroup) {
      release_registers<24>();
      if (threadIdx.x == 0) load_tiles<kTransposed, kEnd, kAdds>(maps, call, ring);
      __syncwarp();
    } else {
      claim_registers<240>();
      wait_for_previous();
      const WarpRows mine(ring);
      ColumnPair pairs[2];
      RowRanks computed_h = {};
#pragma unroll 1
      for (TileWalk at = TileWalk::begin(call, cluster_rank()); !at.ended(call); at.next(call)) {
        Sums sums;
        RankSums h;
        std::conditional_t<kEnd == End::heads, TileHeads, NoHeads> heads(call, at, mine);
        if (kAdds == Adds::computed && at.begins_run()) {
          accumulate<kTransposed, true>(sums, h, ring, call.steps, mine.block, mine.lane);
          const bool stored = call.h && at.column == 0;  // every run of these rows computes the same
          round_ranks(computed_h, h, call, at.row + 64 * mine.block + 16 * mine.warp, stored, mine.lane);
        } else {
          accumulate<kTransposed, false, kEnd == End::heads>(sums, h, ring, call.steps, mine.block, mine.lane);
        }
        if constexpr (kEnd == End::logprob || kEnd == End::logprob_entropy)
          finish_logits<kEnd == End::logprob_entropy>(sums, call, at, mine);
        else
          finish_tile<kEnd, kAdds>(sums, call, at, ring, mine, computed_h, pairs, heads);
      }
    }
    cluster_sync();  // the other block still copies to this one's memory and arrives at its barriers
  } else {
    __trap();
  }
}

// ---- launch ----

int pieces(int64_t all, int64_t of) {
  return static_cast<int>((all + of - 1) / of);
}

TileCall call_of(const TileLinear& p) {
  const Matmul& m = p.matmul;
  TileCall call{.y = static_cast<bf16*>(m.end.y),
                .y_stride = m.end.y_stride,
                .rows = static_cast<int>(m.x.rows),
                .columns = static_cast<int>(m.outputs),
                .width = static_cast<int>(m.outputs),
                .steps = pieces(m.x.cols, 64),
                .row_pairs = pieces(m.x.rows, kPairedBlocks * kRowsPerTile),
                .sum = p.sum,
                .pairs = static_cast<int>(p.pairs.size()),
                .logprob = p.logprob};
  if (!p.act.empty()) {
    call.y = data_of<bf16>(p.act), call.y_stride = p.act.row_stride;
    call.width = call.half_step = static_cast<int>(m.outputs / 2);
    call.column_step = kTileColumns / 2;
  }
  if (p.heads) {
    call.y = data_of<bf16>(p.heads->qk), call.y_stride = p.heads->qk.row_stride;
    call.heads = arguments_of(p.heads->qk, {}, p.heads->spec);
    call.heads.store_in(p.heads->rows.device);
  }
  call.across = call.runs = pieces(call.width, call.column_step);
  if (p.computes_h) {
    if (!p.computed_h.empty()) call.h = data_of<bf16>(p.computed_h);
    call.h_stride = static_cast<int>(p.computed_h.row_stride), call.rank = static_cast<int>(p.pairs.front().rank());
  }
  int group = 0;
  for (int i = 0; i < call.pairs; ++i) {
    const LoraPair& pair = p.pairs[static_cast<size_t>(i)];
    call.pair[i] = {.begin = static_cast<int>(pair.out_begin),
                    .end = static_cast<int>(pair.out_begin + pair.b[1]),
                    .h_group = group,
                    .b_group = p.sum ? group : 0,
                    .groups = pieces(pair.rank(), 16),
                    .scale = pair.scale};
    group += call.pair[i].groups;
  }
  return call;
}

TileMaps maps_of(const TileLinear& p, const TileCall& call) {
  const Matmul& m = p.matmul;
  TileMaps maps{.x = box_map(m.x, 64, kRowsPerTile),
                .w = m.transposed ? box_map(m.w, 64, 32) : box_map(m.w, 64, kTileColumns / 2)};
  if (m.end.residual)
    maps.residual =
        box_map(operand(static_cast<const bf16*>(m.end.residual), m.end.residual_stride, m.x.rows, m.outputs), 64,
                kRowsPerTile);
  for (int i = 0; i < call.pairs; ++i)
    maps.b[i] = box_map(operand(p.pairs[static_cast<size_t>(i)].b), 64, 16 * call.pair[i].groups);
  if (p.computes_h)
    maps.a = box_map(operand(p.pairs.front().a), 64, kComputedRanks);
  else if (call.pairs > 0)
    maps.h = box_map(operand(p.h), 64, kRowsPerTile);
  return maps;
}

// The longest run with which no cluster has more tiles than with runs of one: a run's first tile has 16 columns more
// than the other 256, those of h. But at most half of the columns: two clusters then read the same rows at the same
// time, and memory delivers them once.
void choose_runs(TileCall& call, int clusters) {
  const auto tiles_of_busiest = [&](int run) {
    return pieces(int64_t{call.row_pairs} * pieces(call.across, run), clusters) * run;
  };
  for (int run = 2; run <= call.across / 2; ++run)
    if (tiles_of_busiest(run) <= tiles_of_busiest(1)) call.run = run;
  call.runs = pieces(call.across, call.run);
}

template <bool kTransposed, End kEnd, Adds kAdds>
void launch(const TileLinear& p, cudaStream_t stream) {
  TileCall call = call_of(p);
  constexpr auto kKernel = tiled_matmul<kTransposed, kEnd, kAdds>;
  constexpr size_t kShared = kSharedBytesWith<kAdds>;
  allow_shared<kKernel>(kShared);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kPairedBlocks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // as launch_early
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = kPairedBlocks;
  config.blockDim = kTileThreads;
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  static const int kMostClusters = [&] {
    int count = 0;
    check(cudaOccupancyMaxActiveClusters(&count, kKernel, &config), "linear");
    return std::max(1, count);
  }();
  if constexpr (kAdds == Adds::computed) choose_runs(call, kMostClusters);
  config.gridDim = static_cast<unsigned>(kPairedBlocks * std::min(kMostClusters, call.row_pairs * call.runs));
  cudaLaunchKernelEx(&config, kKernel, maps_of(p, call), call);
  check_launch("linear");
}

template <bool kTransposed, Adds kAdds>
void launch_with(const TileLinear& p, cudaStream_t stream) {
  if constexpr (!kTransposed && kAdds != Adds::computed) {
    if (!p.act.empty()) return launch<false, End::swiglu, kAdds>(p, stream);
    if (p.heads) return launch<false, End::heads, kAdds>(p, stream);
  }
  (p.matmul.end.residual ? launch<kTransposed, End::residual, kAdds> : launch<kTransposed, End::plain, kAdds>)(p,
                                                                                                               stream);
}

void launch_base(const Matmul& matmul, cudaStream_t stream) {
  run_tiles({.matmul = matmul}, stream);
}

// A tile has whole heads of 128, a lane 16 bytes of each of its rows.
bool takes_heads(const TileLinear& p) {
  const QkNormRopeCall& call = *p.heads;
  const QkNormRopeArguments h = arguments_of(call.qk, {}, call.spec);
  return !p.matmul.transposed && !p.matmul.end.residual && p.act.empty() && !p.sum && !p.computes_h &&
         h.head_dim == kTileHeadDim && call.store && call.rows.device.sequences && call.rstd.empty() &&
         rows_aligned(call.qk) && h.norms_aligned;
}

}  // namespace

bool tiles_take(const TileLinear& p) {
  const Matmul& m = p.matmul;
  if (!has_copy_engine() || !m.x.aligned || !m.w.aligned || m.end.y_f32 || m.end.bias) return false;
  if (m.x.rows == 0 || m.x.cols == 0 || m.outputs == 0) return false;
  if (m.end.y && !aligned_16(m.end.y, m.end.y_stride, m.outputs)) return false;
  if (m.end.residual && !aligned_16(m.end.residual, m.end.residual_stride, m.outputs)) return false;
  if (!p.act.empty() && (m.transposed || m.end.residual || !operand(p.act).aligned)) return false;
  if (p.heads && !takes_heads(p)) return false;
  // A slab of ups has one pair.
  if (!p.act.empty() && p.pairs.size() > 1 && m.outputs / 2 % kSlab != 0) return false;
  if (p.pairs.empty()) return !p.computes_h;
  if (p.pairs.size() > size_t{kMaxSitePairs}) return false;
  if (p.computes_h) {
    const LoraPair& pair = p.pairs.front();
    if (m.transposed || !p.act.empty() || p.pairs.size() > 1 || pair.rank() > kComputedRanks || pair.rank_rows.rows)
      return false;
    const bool stores_words =
        p.computed_h.empty() ||
        (p.computed_h.row_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.computed_h.data) % sizeof(uint32_t) == 0);
    if (!operand(pair.a).aligned || !stores_words) return false;
  } else if (!operand(p.h).aligned) {
    return false;
  }
  int64_t groups = 0;
  for (const LoraPair& pair : p.pairs) {
    // A stage has the h and B of 64 ranks, in groups of 16; beyond a single pair's ranks TMA fills in zeros.
    if (pair.rank() % (p.pairs.size() == 1 ? 8 : 16) != 0) return false;
    if (!operand(pair.b).aligned || pair.out_begin % kSlab != 0) return false;
    if (pair.b[1] % kSlab != 0 && pair.out_begin + pair.b[1] != m.outputs) return false;
    groups += (pair.rank() + 15) / 16;
  }
  return groups <= kMaxGroups;
}

void run_tiles(const TileLinear& p, cudaStream_t stream) {
  if (p.logprob.pieces)
    (p.logprob.moment ? launch<false, End::logprob_entropy, Adds::nothing>
                      : launch<false, End::logprob, Adds::nothing>)(p, stream);
  else if (p.pairs.empty())
    (p.matmul.transposed ? launch_with<true, Adds::nothing> : launch_with<false, Adds::nothing>)(p, stream);
  else if (p.computes_h)
    launch_with<false, Adds::computed>(p, stream);
  else if (p.sum)
    launch_with<true, Adds::pairs>(p, stream);
  else
    (p.matmul.transposed ? launch_with<true, Adds::pair> : launch_with<false, Adds::pair>)(p, stream);
}

const SmallKernel& tiles_kernel() {
  static constexpr SmallKernel kKernel{
      .tokens = kRowsPerTile, .rows = kTileColumns, .shared_bytes = kTileSharedBytes, .launch = launch_base};
  return kKernel;
}

}  // namespace lockstep::kernels::cuda
