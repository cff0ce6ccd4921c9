// Matmuls of many rows with an adapter, y = x W^T + residual + scale h B, in one launch on compute capability 9.0. A
// launch has a block on every multiprocessor, and each computes tile after tile. TMA fills a ring buffer with tiles of
// x and of the weight, which the two blocks of a cluster share; two warpgroups multiply them by wgmma, groups of 16 of
// k in order, as everywhere. After a tile's last step the ring brings what the epilogue adds, the tile's h and B and
// its residual, so that nothing has to be waited for. The epilogue rounds as the separate ops do: x W^T + residual
// once, and with h B again.
#include <algorithm>

#include "kernels/cuda/linear_tiles.cuh"
#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

// ---- the warp that loads ----

template <bool kTransposed>
__device__ __forceinline__ void load_step(const TileMaps& maps, const TileCall& call, const CopyRing& ring,
                                          const TileWalk& at, int step) {
  barrier_expect(ring.full(), kStageBytes);
  copy_box(ring.at(), maps.x, step * 64, at.row, ring.full());
  const uint32_t w = ring.at() + kXBytes;
  if constexpr (kTransposed) {  // slabs of columns; this block loads half of the rows of each
#pragma unroll
    for (int s = 0; s < kTileSlabs; ++s)
      copy_box_to_both(w + s * kSlabBytes + at.rank * kSlabBytes / 2, maps.w, at.column + s * kSlab,
                       step * 64 + at.rank * 32, ring.full());
  } else {
    copy_box_to_both(w + at.rank * kWBytes / 2, maps.w, step * 64, at.column + at.rank * call.second, ring.full());
  }
}

__device__ __forceinline__ void load_adapter(const TileMaps& maps, const TileCall& call, const CopyRing& ring,
                                             const TileWalk& at) {
  const uint32_t b = ring.at() + kXBytes;
  const auto each = [&](const auto& f) {
    for (int s = 0; s < kTileSlabs; ++s) {
      const int column = call.slab_column(at.column, s), one = call.sum ? -1 : call.pair_of(column);
      for (int p = 0; p < call.pairs; ++p)
        if (column < call.columns && (call.sum || p == one)) f(s, p, column);
    }
  };
  uint32_t bytes = kXBytes;
  each([&](int, int p, int) { bytes += call.pair[p].groups * 16 * 128; });
  barrier_expect(ring.full(), bytes);
  copy_box(ring.at(), maps.h, 0, at.row, ring.full());
  each([&](int s, int p, int column) {
    copy_box(b + s * kSlabBytes + call.pair[p].b_group * 16 * 128, maps.b[p], column - call.pair[p].begin, 0,
             ring.full());
  });
}

template <End kEnd>
__device__ __forceinline__ void load_end(const TileMaps& maps, const TileCall& call, const CopyRing& ring,
                                         const TileWalk& at, int stage) {
  const int first = stage * kSlabsPerStage, slabs = min(kSlabsPerStage, slabs_read(kEnd) - first);
  barrier_expect(ring.full(), slabs * kTileSlabBytes);
  for (int i = 0; i < slabs; ++i) {
    const int slab = first + i;
    const int column = kEnd == End::residual ? slab * kSlab : slab / 2 * kSlab + slab % 2 * call.width;
    copy_box(ring.at() + i * kTileSlabBytes, maps.end, at.column + column, at.row, ring.full());
  }
}

template <bool kTransposed, End kEnd, Adds kAdds>
__device__ void load_tiles(const TileMaps& maps, const TileCall& call, CopyRing ring) {
  const auto free_stage = [&] { barrier_wait(ring.empty(), ring.parity ^ 1); };
  wait_for_previous();
#pragma unroll 1
  for (TileWalk at = TileWalk::begin(call, cluster_rank()); !at.ended(call); at.next(call)) {
#pragma unroll 1
    for (int step = 0; step < call.steps; ++step, ring.next()) {
      free_stage();
      load_step<kTransposed>(maps, call, ring, at, step);
    }
    if (kAdds != Adds::nothing) {
      free_stage();
      load_adapter(maps, call, ring, at);
      ring.next();
    }
#pragma unroll 1
    for (int stage = 0; stage < end_stages(kEnd); ++stage, ring.next()) {
      free_stage();
      load_end<kEnd>(maps, call, ring, at, stage);
    }
  }
}

// ---- the warpgroups that compute ----

using Sums = float[kTileColumns / 8][4];  // of a warpgroup's 64 rows

__device__ __forceinline__ void release(uint32_t empty, int lane) {
  __syncwarp();
  if (lane < kPairedBlocks) barrier_arrive_at(empty, lane);
}

// x W^T of the rows of block `block` of 64. The ring moves on behind the tile's steps.
template <bool kTransposed>
__device__ __forceinline__ void accumulate(Sums& sums, CopyRing& ring, int steps, int block, int lane) {
  uint32_t previous = 0;  // the `empty` barrier of the step before
  wgmma_fence();
#pragma unroll 1
  for (int step = 0; step < steps; ++step, ring.next()) {
    barrier_wait(ring.full(), ring.parity);
    const uint64_t x = shared_tile(ring.at()) + block * kNextRows, w = shared_tile(ring.at() + kXBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      tile_step<kTransposed>(sums, x + k * kNextColumns, w + k * (kTransposed ? kNextRowsOfK : kNextColumns),
                             step > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (previous) release(previous, lane);
    previous = ring.empty();
  }
  wgmma_wait<0>();
  pin(sums);
  release(previous, lane);
}

// The pair that adds to a column and to those behind it up to `end`; groups = 0: none does.
struct ColumnPair {
  int end = 0, h_group = 0, groups = 0;
  float scale = 1;

  __device__ static ColumnPair of(const TileCall& call, int column) {
    const int p = call.pair_of(column);
    if (p < 0) return {.end = column + kSlab};
    return {call.pair[p].end, call.pair[p].h_group, call.pair[p].groups, call.pair[p].scale};
  }
};

// The epilogue works on a slab: `words[j]` are the stored columns 8 j .. 8 j + 7 of row lane / 4 and of the row eight
// below, among a warp's 16 rows.
constexpr int kChunks = kSlab / 8;
using Words = uint32_t[kChunks][2];

// Address of chunk `chunk` of a lane's row of a swizzled slab, as ldmatrix and stmatrix want it.
__device__ __forceinline__ uint32_t chunk_at(uint32_t row, int chunk, int lane) {
  return row + ((chunk + lane / 16) ^ lane % 8) * 16;
}

// x W^T + residual, rounded. residual: a lane's row of the slab.
template <bool kResidual>
__device__ __forceinline__ void round_sums(Words& words, const Sums& sums, int slab, uint32_t residual, int lane) {
#pragma unroll
  for (int j = 0; j < kChunks; j += 2) {
    uint32_t r[4];
    if constexpr (kResidual) load_matrices(r, chunk_at(residual, j, lane));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&sum)[4] = sums[kChunks * slab + j + i / 2];
      float low = sum[i % 2 * 2], high = sum[i % 2 * 2 + 1];
      if constexpr (kResidual) {
        low = __fadd_rn(low, __uint_as_float(r[i] << 16));
        high = __fadd_rn(high, __uint_as_float(r[i] & 0xffff0000u));
      }
      words[j + i / 2][i % 2] = pack_bf16(low, high);
    }
  }
}

// Adds `groups` groups of 16 ranks. h: a lane's row of h, in which they begin at chunk h_chunk; b: of their rows of B.
__device__ __forceinline__ void add_ranks(float (&sums)[kChunks][4], int groups, uint32_t h, int h_chunk, uint32_t b,
                                          int lane) {
#pragma unroll 1
  for (int g = 0; g < groups; ++g, h_chunk += 2, b += 16 * 128) {
    uint32_t a[4];
    load_matrices(a, chunk_at(h, h_chunk, lane));
#pragma unroll
    for (int j = 0; j < kChunks; j += 2) {
      uint32_t w[4];
      load_matrices_trans(w, chunk_at(b, j, lane));
      mma_16816(sums[j], a, {w[0], w[1]});
      mma_16816(sums[j + 1], a, {w[2], w[3]});
    }
  }
}

// Adds the adapter's part and rounds again.
template <Adds kAdds>
__device__ __forceinline__ void add_adapter(Words& words, const TileCall& call, const ColumnPair& pair, uint32_t h,
                                            uint32_t b, int lane) {
  float sums[kChunks][4] = {};
  if constexpr (kAdds == Adds::pairs) {
    add_ranks(sums, call.pair[0].groups, h, 0, b, lane);
#pragma unroll
    for (int p = 1; p < kMaxSitePairs; ++p) {
      if (p >= call.pairs) break;
      float more[kChunks][4] = {};
      const int group = call.pair[p].h_group;
      add_ranks(more, call.pair[p].groups, h, 2 * group, b + group * 16 * 128, lane);
#pragma unroll
      for (int j = 0; j < kChunks; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[j][e] = __fadd_rn(more[j][e], sums[j][e]);
    }
  } else {
    if (pair.groups == 0) return;  // adding 0 would turn -0 into 0
    add_ranks(sums, pair.groups, h, 2 * pair.h_group, b, lane);
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] = __fmaf_rn(pair.scale, sums[j][e], 0.0f);
  }
#pragma unroll
  for (int j = 0; j < kChunks; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      words[j][i] = pack_bf16(__fadd_rn(__uint_as_float(words[j][i] << 16), sums[j][2 * i]),
                              __fadd_rn(__uint_as_float(words[j][i] & 0xffff0000u), sums[j][2 * i + 1]));
}

// Stores a warp's rows of a slab, which pass through its 2 KB of shared memory so that a lane stores 16 bytes and a
// quarter of a warp a line of 128. y: where a lane's first chunk goes; `rows`: of those that the matrix still has.
__device__ __forceinline__ void store_slab(bf16* y, int64_t stride, int rows, bool inside, const Words& words,
                                           uint32_t memory, int lane) {
#pragma unroll
  for (int j = 0; j < kChunks; j += 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                     chunk_at(memory + lane % 16 * 128, j, lane)),
                 "r"(words[j][0]), "r"(words[j][1]), "r"(words[j + 1][0]), "r"(words[j + 1][1])
                 : "memory");
  __syncwarp();
  uint4 values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 4 * i + lane / 8;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(values[i].x), "=r"(values[i].y), "=r"(values[i].z), "=r"(values[i].w)
                 : "r"(memory + row * 128 + ((lane ^ row) & 7) * 16)
                 : "memory");
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (inside && 4 * i + lane / 8 < rows) *reinterpret_cast<uint4*>(y + 4 * i * stride) = values[i];
  __syncwarp();
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

// The slabs that the end reads, in order: each stage is taken with its first and released with its last.
template <End kEnd>
struct EndSlabs {
  HeldStage stage[end_stages(kEnd) + 1] = {};

  // After this, slab `slab` can be read; those before it were taken before.
  __device__ __forceinline__ uint32_t take(int slab, CopyRing& ring) {
    HeldStage& held = stage[slab / kSlabsPerStage];
    if (slab % kSlabsPerStage == 0) held = HeldStage::take(ring);
    return held.at + slab % kSlabsPerStage * kTileSlabBytes;
  }
  __device__ __forceinline__ void release_read(int slab, int lane) const {
    if (slab % kSlabsPerStage == kSlabsPerStage - 1 || slab == slabs_read(kEnd) - 1)
      release(stage[slab / kSlabsPerStage].empty, lane);
  }
};

// The epilogue of a tile for the rows of block `block`: adds, rounds and stores slab after slab.
template <End kEnd, Adds kAdds>
struct TileEnd {
  const Sums& sums;
  const TileCall& call;
  const TileWalk& at;
  CopyRing& ring;
  int block, warp, lane;
  uint32_t memory;  // of the warp, for what it stores
  uint32_t row;     // a lane's row in a slab of the tile's rows
  HeldStage adapter = {};
  ColumnPair pair = {};

  __device__ __forceinline__ void words_of(Words& words, int slab, uint32_t residual) {
    const int column = call.slab_column(at.column, slab);
    round_sums<kEnd == End::residual>(words, sums, slab, residual, lane);
    if (kAdds == Adds::pair && (slab == 0 || column >= pair.end || kEnd == End::swiglu))
      pair = ColumnPair::of(call, column);
    if constexpr (kAdds != Adds::nothing)
      add_adapter<kAdds>(words, call, pair, adapter.at + row,
                         adapter.at + kXBytes + slab * kSlabBytes + lane % 16 * 128, lane);
  }
  __device__ __forceinline__ void store(bf16* to, int64_t stride, int column, const Words& words) const {
    const int row0 = at.row + 64 * block + 16 * warp, lane_column = column + lane % 8 * 8;
    bf16* const y = to + (row0 + lane / 8) * stride + lane_column;
    store_slab(y, stride, call.rows - row0, lane_column < call.width, words, memory, lane);
  }

  __device__ __forceinline__ void run() {
    if constexpr (kAdds != Adds::nothing) adapter = HeldStage::take(ring);
    EndSlabs<kEnd> slabs;
#pragma unroll
    for (int s = 0; s < (kEnd == End::swiglu ? kTileSlabs / 2 : kTileSlabs); ++s) {
      const int column = at.column + s * kSlab;
      Words words;
      if constexpr (kEnd == End::swiglu) {
        Words up;
        words_of(words, s, 0), words_of(up, s + kTileSlabs / 2, 0);
        if (call.y) store(call.y, call.y_stride, column, words), store(call.y + call.width, call.y_stride, column, up);
#pragma unroll
        for (int j = 0; j < kChunks; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) words[j][i] = swiglu_2(words[j][i], up[j][i]);
        store(call.act, call.act_stride, column, words);
      } else if constexpr (kEnd == End::swiglu_backward) {
        words_of(words, s, 0);
        Words up;
        const uint32_t gates = slabs.take(2 * s, ring), ups = slabs.take(2 * s + 1, ring);
        gradients(words, up, gates + row, ups + row);
        slabs.release_read(2 * s, lane), slabs.release_read(2 * s + 1, lane);
        store(call.y, call.y_stride, column, words);
        store(call.y + call.width, call.y_stride, column, up);
      } else if constexpr (kEnd == End::residual) {
        words_of(words, s, slabs.take(s, ring) + row);
        slabs.release_read(s, lane);
        store(call.y, call.y_stride, column, words);
      } else {
        words_of(words, s, 0);
        store(call.y, call.y_stride, column, words);
      }
    }
    if constexpr (kAdds != Adds::nothing) release(adapter.empty, lane);
  }

 private:
  // words: the gradient of the result, then of gate; up: of up. gates, ups: a lane's row of their slabs.
  __device__ __forceinline__ void gradients(Words& words, Words& up, uint32_t gates, uint32_t ups) const {
#pragma unroll
    for (int j = 0; j < kChunks; j += 2) {
      uint32_t g[4], u[4];
      load_matrices(g, chunk_at(gates, j, lane));
      load_matrices(u, chunk_at(ups, j, lane));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        swiglu_gradient_2(g[i], u[i], words[j + i / 2][i % 2]);
        words[j + i / 2][i % 2] = g[i], up[j + i / 2][i % 2] = u[i];
      }
    }
  }
};

template <bool kTransposed, End kEnd, Adds kAdds>
__device__ void compute_tiles(const TileCall& call, CopyRing ring) {
  const int number = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0) - kWarpgroup / 32;
  const int block = number / 4, warp = number % 4, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (TileWalk at = TileWalk::begin(call, cluster_rank()); !at.ended(call); at.next(call)) {
    Sums sums;
    accumulate<kTransposed>(sums, ring, call.steps, block, lane);
    TileEnd<kEnd, kAdds> end{.sums = sums,
                             .call = call,
                             .at = at,
                             .ring = ring,
                             .block = block,
                             .warp = warp,
                             .lane = lane,
                             .memory = ring.shared + kStages * kStageBytes + number * kWarpStoreBytes,
                             .row = block * kSlabBytes + 128 * (16 * warp + lane % 16)};
    end.run();
  }
}

template <bool kTransposed, End kEnd, Adds kAdds>
__global__ void __cluster_dims__(kPairedBlocks, 1, 1) __launch_bounds__(kTileThreads, 1)
    tiled_matmul(const __grid_constant__ TileMaps maps, const __grid_constant__ TileCall call) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const CopyRing ring{.shared = (shared_address(shared) + 1023) / 1024 * 1024,
                        .stage_bytes = kStageBytes,
                        .stages = kStages,
                        .slack_bytes = kStoreBytes};
    if (threadIdx.x == 0) ring.init(kReaders);
    cluster_sync();
    let_next_begin();
    if (threadIdx.x < kWarpgroup) {
      release_registers<24>();
      if (threadIdx.x == 0) load_tiles<kTransposed, kEnd, kAdds>(maps, call, ring);
    } else {
      claim_registers<240>();
      wait_for_previous();
      compute_tiles<kTransposed, kEnd, kAdds>(call, ring);
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

End end_of(const TileLinear& p) {
  if (!p.act.empty()) return End::swiglu;
  if (!p.gate_up.empty()) return End::swiglu_backward;
  return p.matmul.end.residual ? End::residual : End::plain;
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
                .pairs = static_cast<int>(p.pairs.size())};
  if (end_of(p) == End::swiglu) {
    call.act = data_of<bf16>(p.act), call.act_stride = p.act.row_stride;
    call.width = call.second = static_cast<int>(m.outputs / 2);
    call.next = kTileColumns / 2;
  }
  if (end_of(p) == End::swiglu_backward) call.y = data_of<bf16>(p.d_gate_up), call.y_stride = p.d_gate_up.row_stride;
  call.across = pieces(call.width, call.next);
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
  if (end_of(p) == End::residual)
    maps.end = box_map(operand(static_cast<const bf16*>(m.end.residual), m.end.residual_stride, m.x.rows, m.outputs),
                       64, kRowsPerTile);
  if (end_of(p) == End::swiglu_backward) maps.end = box_map(operand(p.gate_up), 64, kRowsPerTile);
  for (int i = 0; i < call.pairs; ++i)
    maps.b[i] = box_map(operand(p.pairs[static_cast<size_t>(i)].b), 64, 16 * call.pair[i].groups);
  if (call.pairs > 0) maps.h = box_map(operand(p.h), 64, kRowsPerTile);
  return maps;
}

template <bool kTransposed, End kEnd, Adds kAdds>
void launch(const TileLinear& p, cudaStream_t stream) {
  static const int kMostClusters = [] {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    return count / kPairedBlocks;
  }();
  const TileCall call = call_of(p);
  const int clusters = std::min(kMostClusters, call.row_pairs * call.across);
  constexpr auto kKernel = tiled_matmul<kTransposed, kEnd, kAdds>;
  allow_shared<kKernel>(kTileSharedBytes);
  launch_early(kKernel, static_cast<unsigned>(clusters * kPairedBlocks), kTileThreads, kTileSharedBytes, stream,
               maps_of(p, call), call);
  check_launch("linear");
}

template <bool kTransposed, Adds kAdds>
void launch_with(const TileLinear& p, cudaStream_t stream) {
  switch (end_of(p)) {
    case End::plain: return launch<kTransposed, End::plain, kAdds>(p, stream);
    case End::residual: return launch<kTransposed, End::residual, kAdds>(p, stream);
    case End::swiglu:
      if constexpr (!kTransposed) launch<false, End::swiglu, kAdds>(p, stream);
      break;
    case End::swiglu_backward:
      if constexpr (kTransposed && kAdds != Adds::pairs) launch<true, End::swiglu_backward, kAdds>(p, stream);
  }
}

void launch_base(const Matmul& matmul, cudaStream_t stream) {
  run_tiles({.matmul = matmul}, stream);
}

}  // namespace

bool tiles_take(const TileLinear& p) {
  const Matmul& m = p.matmul;
  if (!has_copy_engine() || !m.x.aligned || !m.w.aligned || m.end.y_f32 || m.end.bias || m.x.rows == 0) return false;
  if (m.end.y && !aligned_16(m.end.y, m.end.y_stride, m.outputs)) return false;
  if (m.end.residual && !aligned_16(m.end.residual, m.end.residual_stride, m.outputs)) return false;
  if (!p.act.empty() && (m.transposed || m.end.residual || !operand(p.act).aligned)) return false;
  if (!p.gate_up.empty() &&
      (!m.transposed || m.end.residual || p.sum || !operand(p.gate_up).aligned || !operand(p.d_gate_up).aligned))
    return false;
  if (p.pairs.empty()) return true;
  if (p.pairs.size() > size_t{kMaxSitePairs} || !operand(p.h).aligned) return false;
  int64_t groups = 0;
  for (const LoraPair& pair : p.pairs) {
    // A stage has the h and B of 64 ranks, in groups of 16; beyond a single pair's ranks TMA fills in zeros.
    if (pair.rank() % (p.pairs.size() == 1 ? 8 : 16) != 0) return false;
    if (!operand(pair.b).aligned || pair.out_begin % kSlab != 0) return false;
    if (pair.b[1] % kSlab != 0 && pair.out_begin + pair.b[1] != m.outputs) return false;
    groups += (pair.rank() + 15) / 16;
  }
  return groups <= 4;
}

void run_tiles(const TileLinear& p, cudaStream_t stream) {
  if (p.pairs.empty())
    (p.matmul.transposed ? launch_with<true, Adds::nothing> : launch_with<false, Adds::nothing>)(p, stream);
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
