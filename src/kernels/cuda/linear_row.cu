// Matmuls of one row that is normalized first, on compute capability 9.0: the ring of linear_ring.cu holds only the
// weights. The row itself is in shared memory as a whole; the block's warps compute its norm while weights are being
// loaded. Outputs are divided into tiles, and a block computes one after the other, so that the ring never drains
// between two of them. Its first tiles are fixed, every gridDim.x-th; then it claims whichever is next, because some
// blocks begin while the kernel ahead still has most of the multiprocessors, and not all load equally fast.
//
// One kernel covers all options and tile heights: a decode step is a sequence of such matmuls, and code that the
// previous one has run is still in the instruction cache.
#include <algorithm>

#include "kernels/cuda/claimed_indices.cuh"
#include "kernels/cuda/linear_fused.h"
#include "kernels/cuda/linear_row_norm.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = kRingThreads;
constexpr int kBoxes = 4;  // per stage
constexpr int kStageColumns = kBoxes * kBoxColumns;
// Elements of a weight. With smaller ones a block has one tile, and linear_ring.cu has shapes to choose from.
constexpr int64_t kSmallestWeight = int64_t{1} << 23;
// More than half, because a second block of the same matmul on one multiprocessor would slow the first one down while
// other multiprocessors are idle.
constexpr int64_t kMinShared = 116 << 10;
// The loading warp hands the numbers of a block's tiles to the others through slots in shared memory. It is ahead of
// them by at most as many tiles as the ring has stages.
constexpr int kTileSlots = 2 * CopyRing::kMaxStages;

struct Launch {
  RowMatmul row;
  int tile_rows = 0, tiles = 0, steps = 0, stages = 0;
  int own_tiles = 0;         // of each block; the others are claimed. tiles + 1: none is
  uint32_t slack_bytes = 0;  // after the last stage, where the row is stored
};
// From the row to the slots behind it.
__host__ __device__ constexpr uint32_t slots_at(int steps) {
  return row_bytes(steps * kStageColumns);
}

[[maybe_unused]] __device__ void put_row(uint32_t to, int padded, const RowMatmul& row, int warp, int lane) {
  const int width = static_cast<int>(row.matmul.x.cols);
  const bf16* const x = row.matmul.x.data;
  const uint32_t scratch = to + scratch_at(padded);
  if (width <= kWidestWarpNorm) {
    store_normed_row<32>(to, scratch, padded, x, width, row.norm, warp, lane);
  } else if (width <= kWidestWarpgroupNorm) {
    store_normed_row<128>(to, scratch, padded, x, width, row.norm, warp, lane);
  } else {
    store_normed_row<512>(to, scratch, padded, x, width, row.norm, warp, lane);
  }
  fence_for_wgmma();
}

// Accumulates one tile, continuing at the ring's current stage.
[[maybe_unused]] __device__ __forceinline__ void accumulate_tile(float (&acc)[1][4], int steps, CopyRing& ring,
                                                                 uint32_t x, uint32_t box_bytes, int lane) {
  wgmma_fence();
  uint32_t previous = 0;  // the `empty` barrier of the previous stage
  for (int step_of_ring = 0; step_of_ring < steps; ++step_of_ring, ring.next()) {
    barrier_wait(ring.full(), ring.parity);
    const uint64_t row = row_descriptor(x);
    uint64_t w = tile_descriptor(ring.at());
#pragma unroll
    for (int b = 0; b < kBoxes; ++b, w = moved(w, box_bytes / 16))
#pragma unroll
      for (int k = 0; k < kBoxColumns / 16; ++k)
        step(acc, moved(w, column_step(k)), moved(row, b * kBoxColumns * 2 / 16 + column_step(k)));
    x += kStageColumns * 2;
    wgmma_commit();
    wgmma_wait<1>();
    if (previous && lane == 0) barrier_arrive(previous);
    previous = ring.empty();
  }
  wgmma_wait<0>();
  if (lane == 0) barrier_arrive(previous);
  pin(acc);
}

// A thread's two outputs of a tile for the only token: rows lane / 4 and lane / 4 + 8 of its warp's 16. With SwiGLU
// they are a gate and its up.
struct Ends {
  int64_t output[2];
  bool stored[2];
  float bias[2] = {};

  // Loaded before the accumulation, so that the epilogue need not wait.
  __device__ Ends(const Launch& l, int tile, int warp, int lane) {
    const Matmul& p = l.row.matmul;
    const bool swiglu = l.row.swiglu, holds = lane % 4 == 0 && 16 * warp < l.tile_rows;
    const int64_t outputs = swiglu ? p.outputs / 2 : p.outputs;
    const int rows = swiglu ? l.tile_rows / 2 : l.tile_rows, at = (swiglu ? 8 : 16) * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_tile = swiglu ? at : at + 8 * i;
      const int64_t in_part = int64_t{tile} * rows + in_tile;
      stored[i] = holds && in_tile < rows && in_part < outputs;
      output[i] = swiglu ? in_part + i * outputs : in_part;
      if (stored[i] && p.end.bias) bias[i] = p.end.bias[output[i]];
    }
  }
  __device__ void store(const Launch& l, const float (&acc)[1][4]) const {
    const Epilogue& end = l.row.matmul.end;
    float value[2] = {acc[0][0], acc[0][2]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (end.bias) value[i] = __fadd_rn(value[i], bias[i]);
      if (!l.row.swiglu && stored[i]) end.store(0, output[i], value[i]);
    }
    if (l.row.swiglu && stored[0]) static_cast<bf16*>(end.y)[output[0]] = swiglu_of_sums(value[0], value[1]);
  }
};

// Called by one thread. The first stages are free from the start.
struct WeightLoader {
  const CUtensorMap& map;
  const Launch& l;
  CopyRing ring;
  uint32_t slots;
  int tile, number = 0, step = 0;  // number: of the block's tiles before this one
  int next = 0;                    // the tile behind it

  __device__ bool more() const { return tile < l.tiles; }
  __device__ bool claims_next() const { return number + 1 >= l.own_tiles; }
  __device__ void find_next() {
    const int blocks = static_cast<int>(gridDim.x);
    next = claims_next() ? l.own_tiles * blocks + claim_index(l.row.claims) : tile + blocks;
  }
  __device__ void load() {
    // Whoever waits for the tile's last stage sees which tile follows.
    if (step == l.steps - 1)
      asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(slots + (number + 1) % kTileSlots * 4), "r"(next) : "memory");
    barrier_expect(ring.full(), ring.stage_bytes);
    const int groups = l.tile_rows / (l.row.swiglu ? 16 : 8);
    copy_slabs(ring.at(), map, tile * groups, step * kBoxes, ring.full());
    ring.next();
    if (++step == l.steps) step = 0, tile = next, ++number;
  }
  // own_tiles is such that the ring is full before the first claim.
  __device__ void start() {
    prefetch_map(map);
    ring.init(kWarpgroup / 32);
    for (int loaded = 0; more() && loaded < ring.stages; ++loaded) {
      if (step == 0 && !claims_next()) find_next();
      load();
    }
  }
  // Waits first: blocks of an earlier launch may still be claiming. A claim takes time, so it is made when a tile
  // begins.
  __device__ void go_on() {
    wait_for_previous();
    if (more() && (step == 0 || claims_next())) find_next();
    while (more()) {
      barrier_wait(ring.empty(), ring.parity ^ 1);
      load();
      if (step == 0 && more()) find_next();
    }
    if (l.own_tiles <= l.tiles) finish_claims(l.row.claims);
  }
};

__global__ void __launch_bounds__(kThreads)
    row_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ Launch l) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t unaligned[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t box_bytes = l.tile_rows * 128;
    CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                  .stage_bytes = kBoxes * box_bytes,
                  .stages = l.stages,
                  .slack_bytes = l.slack_bytes};
    const uint32_t row = ring.shared + l.stages * ring.stage_bytes, slots = row + slots_at(l.steps);
    let_next_begin();
    if (warp == kWarpgroup / 32) {
      WeightLoader loader{.map = w, .l = l, .ring = ring, .slots = slots, .tile = static_cast<int>(blockIdx.x)};
      if (lane == 0) loader.start();
      __syncthreads();
      if (lane == 0) loader.go_on();
      return;
    }
    put_row(row, l.steps * kStageColumns, l.row, warp, lane);
    __syncthreads();
#pragma unroll 1
    for (int number = 1, tile = static_cast<int>(blockIdx.x); tile < l.tiles; ++number) {
      const Ends ends(l, tile, warp, lane);
      float acc[1][4] = {};
      accumulate_tile(acc, l.steps, ring, row, box_bytes, lane);
      asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(tile) : "r"(slots + number % kTileSlots * 4) : "memory");
      ends.store(l, acc);
    }
  } else {
    __trap();
  }
}

// Among the heights that give a block the fewest outputs in total, the largest.
int rows_of_a_tile(int64_t outputs, bool swiglu, int multiprocessors) {
  const int least = swiglu ? 16 : 8;
  int best = 0;
  int64_t fewest = 0;
  for (int rows = least; rows <= kTileOutputs; rows += least) {
    const int64_t tiles = (outputs + rows - 1) / rows, most = (tiles + multiprocessors - 1) / multiprocessors * rows;
    if (!best || most <= fewest) best = rows, fewest = most;
  }
  return best;
}

}  // namespace

bool row_matmul(const RowMatmul& row, int multiprocessors, cudaStream_t stream) {
  const Matmul& p = row.matmul;
  if (!has_copy_engine() || p.x.rows != 1 || p.transposed || p.outputs == 0 || p.x.cols == 0 || !p.x.aligned ||
      !suits_slab_map(p.w, row.swiglu) || p.w.rows * p.w.cols < kSmallestWeight || !row.norm.weight || p.end.residual ||
      p.x.cols > kWidestNorm || reinterpret_cast<uintptr_t>(row.norm.weight) % 16 != 0)
    return false;
  const auto tiles_of = [&](int rows) { return (p.outputs + rows - 1) / rows; };
  int tile_rows = rows_of_a_tile(p.outputs, row.swiglu, multiprocessors);
  // Where blocks can have one tile each (q, k and v), at least an eighth of the multiprocessors is left to the launch
  // behind, if a tile has at most a quarter more rows then: blocks of attention begin there and ask for keys and values
  // early.
  const int most = multiprocessors - multiprocessors / 8, larger = rows_of_a_tile(p.outputs, row.swiglu, most);
  if (!row.swiglu && tiles_of(larger) <= most && 4 * larger <= 5 * tile_rows) tile_rows = larger;
  const int64_t tiles = tiles_of(tile_rows), blocks = std::min<int64_t>(tiles, multiprocessors);
  const int64_t steps = (p.x.cols + kStageColumns - 1) / kStageColumns, stage_bytes = int64_t{kBoxes} * tile_rows * 128;
  // The last box's wgmma reads beyond the ring.
  const int64_t slack =
      std::max<int64_t>(slots_at(static_cast<int>(steps)) + 4 * kTileSlots, (kTileOutputs - tile_rows) * 128);
  const int64_t fixed = 1024 + slack + CopyRing::kBarrierBytes;
  const int64_t wanted = steps * ((tiles + blocks - 1) / blocks);
  const int64_t stages = std::min({wanted, (int64_t{kMaxShared} - fixed) / stage_bytes, int64_t{CopyRing::kMaxStages}});
  const int64_t own_tiles = (stages + steps) / steps;
  allow_shared<row_kernel>(kMaxShared);
  const Launch arguments{.row = row,
                         .tile_rows = tile_rows,
                         .tiles = static_cast<int>(tiles),
                         .steps = static_cast<int>(steps),
                         .stages = static_cast<int>(stages),
                         .own_tiles = static_cast<int>(own_tiles * blocks < tiles ? own_tiles : tiles + 1),
                         .slack_bytes = static_cast<uint32_t>(slack)};
  launch_early(row_kernel, static_cast<unsigned>(blocks), kThreads,
               static_cast<size_t>(std::max(kMinShared, fixed + stages * stage_bytes)), stream,
               slab_map(p.w, tile_rows, kBoxes, row.swiglu), arguments);
  check_launch("linear");
  return true;
}

}  // namespace lockstep::kernels::cuda
