// What the matmuls of few rows share that read a ring buffer of stages with wgmma (linear_ring.cu): one warp fills
// the ring, the warpgroups before it consume it. Blocks with the same outputs may form a cluster, in which a weight is
// loaded once for all.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

// Named barriers of a block: 1 hands over h, 2 the sums of a norm, 3 the normalized row; at 4 and 5 each of two
// warpgroups begins to accumulate.

inline constexpr int kBoxColumns = 64;   // of the contraction: 128 bytes, the width of the copy engine's swizzle
inline constexpr int kTileOutputs = 64;  // rows of a wgmma

// A row in shared memory as wgmma's tile of eight tokens (without swizzle): of each eight columns, eight "rows" of 16
// bytes, of which the first are these columns. The others are the columns behind them; the tokens that they would be
// are dropped.
inline constexpr uint32_t kRowSlackBytes = 128;     // that the last tile reads behind the row
inline constexpr uint32_t kRowScratchBytes = 2048;  // then, for store_normed_row
__host__ __device__ constexpr uint32_t scratch_at(int columns) {
  return static_cast<uint32_t>(columns) * 2 + kRowSlackBytes;
}
__host__ __device__ constexpr uint32_t row_bytes(int columns) {
  return scratch_at(columns) + kRowScratchBytes;
}
// Matrix descriptor of 16 columns of the row: it is 16 bytes from the first eight to the others.
__device__ __forceinline__ uint64_t row_descriptor(uint32_t columns) {
  return uint64_t{1} << 16 | (columns & 0x3ffff) >> 4;
}

template <int kTokens_, int kRows_, int kBoxes_, int kCluster_ = 1, int kKeptColumns_ = 0>
struct Shape {
  static constexpr int kTokens = kTokens_, kRows = kRows_, kBoxes = kBoxes_;  // boxes of one stage
  // Stages hold only the weight; x, of up to so many columns, lies before them as a whole (linear_row_norm.cuh).
  static constexpr int kKeptColumns = kKeptColumns_;
  static constexpr bool kKeepsX = kKeptColumns > 0;
  // Blocks that form a cluster: they compute the same outputs, and each loads its share of the weight for all.
  static constexpr int kCluster = kCluster_;
  [[maybe_unused]] static constexpr int kTokenTiles = kTokens / 8;
  static constexpr int kWarpgroups = (kRows + kTileOutputs - 1) / kTileOutputs;
  static constexpr int kThreads = kWarpgroups * kWarpgroup + 32;
  static constexpr int kReaders = kWarpgroups * kWarpgroup / 32 * kCluster;  // warps that release a stage
  static constexpr uint32_t kXBytes = kTokens * 128, kWBytes = kRows * 128;
  static constexpr uint32_t kStageXBytes = kKeepsX ? 0 : kBoxes * kXBytes;
  static constexpr uint32_t kStageBytes = kStageXBytes + kBoxes * kWBytes;
  static constexpr uint32_t kKeptXBytes = kKeepsX ? (row_bytes(kKeptColumns) + 1023) / 1024 * 1024 : 0;
  // The last box's wgmma reads beyond the ring.
  static constexpr uint32_t kSlackBytes = (kWarpgroups * kTileOutputs - kRows) * 128;
  static constexpr uint32_t kFixedBytes = 1024 + kKeptXBytes + kSlackBytes + CopyRing::kBarrierBytes;
  static constexpr int kStages = std::min<int>(CopyRing::kMaxStages, (kMaxShared - kFixedBytes) / kStageBytes);
  static constexpr size_t kSharedBytes = kFixedBytes + kStages * kStageBytes;
  static constexpr int64_t kHeldColumns = kStages * kBoxes * kBoxColumns;  // of the weight, in shared memory at once

  __device__ static int steps(int64_t depth) {
    return static_cast<int>((depth + kBoxes * kBoxColumns - 1) / (kBoxes * kBoxColumns));
  }
  __device__ static uint32_t kept_x(const CopyRing& ring) { return ring.shared - kKeptXBytes; }
  // From the tile of a box to that of the next one, in the units of a descriptor (16 bytes).
  static constexpr uint32_t kXBoxUnits = (kKeepsX ? kBoxColumns * 2 : kXBytes) / 16, kWBoxUnits = kWBytes / 16;
  // The first tile of a step's x, and of its weight, whose outputs begin `tile` bytes further.
  __device__ static uint64_t x_descriptor(const CopyRing& ring, int step) {
    return kKeepsX ? row_descriptor(kept_x(ring) + step * (kBoxes * kBoxColumns * 2)) : tile_descriptor(ring.at());
  }
  __device__ static uint64_t w_descriptor(const CopyRing& ring, uint32_t tile) {
    return tile_descriptor(ring.at() + kStageXBytes + tile);
  }
};

// The descriptor of a tile `units` of 16 bytes further. Only its lower half changes, so that the compiler computes one
// word of it.
__device__ __forceinline__ uint64_t moved(uint64_t descriptor, uint32_t units) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + units);
}

inline constexpr int kRingThreads = kWarpgroup + 32;  // with one warpgroup

// A block's ring in the dynamic shared memory of its launch.
template <class S>
__device__ __forceinline__ CopyRing ring_of(const uint8_t* unaligned) {
  return {.shared = (shared_address(unaligned) + 1023) / 1024 * 1024 + S::kKeptXBytes,
          .stage_bytes = S::kStageBytes,
          .stages = S::kStages,
          .slack_bytes = S::kSlackBytes};
}
// Called by all threads before they use the ring. Lets the next kernel begin.
template <class S>
__device__ __forceinline__ void begin_ring(const uint8_t* unaligned) {
  if (threadIdx.x == 0) ring_of<S>(unaligned).init(S::kReaders);
  __syncthreads();
  if constexpr (S::kCluster > 1) cluster_arrive();
  let_next_begin();
}
// Called by each warp before it uses other blocks' rings.
template <class S>
__device__ __forceinline__ void wait_for_rings() {
  if constexpr (S::kCluster > 1) cluster_wait();
}
// Called by each warp at its end: what this block has loaded may still be on its way to the others.
template <class S>
__device__ __forceinline__ void leave_rings() {
  if constexpr (S::kCluster > 1) {
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

#define LOCKSTEP_TOKENS(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
// d += w x^T, for 64 outputs, 8 kTiles tokens and 16 of the contraction.
__device__ __forceinline__ void step(float (&d)[1][4], uint64_t w, uint64_t x) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;\n"
               : LOCKSTEP_TOKENS(d, 0)
               : "l"(w), "l"(x));
}
__device__ __forceinline__ void step(float (&d)[2][4], uint64_t w, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;\n"
      : LOCKSTEP_TOKENS(d, 0), LOCKSTEP_TOKENS(d, 1)
      : "l"(w), "l"(x));
}
__device__ __forceinline__ void step(float (&d)[4][4], uint64_t w, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;\n"
      : LOCKSTEP_TOKENS(d, 0), LOCKSTEP_TOKENS(d, 1), LOCKSTEP_TOKENS(d, 2), LOCKSTEP_TOKENS(d, 3)
      : "l"(w), "l"(x));
}
__device__ __forceinline__ void step(float (&d)[8][4], uint64_t w, uint64_t x) {
  wgmma_shared(d, w, x);
}
__device__ __forceinline__ void step(float (&d)[16][4], uint64_t w, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1, 1, 1, 0, 0;\n"
      : LOCKSTEP_TOKENS(d, 0), LOCKSTEP_TOKENS(d, 1), LOCKSTEP_TOKENS(d, 2), LOCKSTEP_TOKENS(d, 3),
        LOCKSTEP_TOKENS(d, 4), LOCKSTEP_TOKENS(d, 5), LOCKSTEP_TOKENS(d, 6), LOCKSTEP_TOKENS(d, 7),
        LOCKSTEP_TOKENS(d, 8), LOCKSTEP_TOKENS(d, 9), LOCKSTEP_TOKENS(d, 10), LOCKSTEP_TOKENS(d, 11),
        LOCKSTEP_TOKENS(d, 12), LOCKSTEP_TOKENS(d, 13), LOCKSTEP_TOKENS(d, 14), LOCKSTEP_TOKENS(d, 15)
      : "l"(w), "l"(x));
}
#undef LOCKSTEP_TOKENS

// Where accumulators belong: acc[j][e] is token `token` + 8 j + e % 2, output `output` + 8 (e / 2).
struct Place {
  int64_t output, end;
  int token;

  // Outputs from first_output on, below `end`. `warp`: 16 outputs each.
  __device__ static Place of(int64_t first_output, int64_t end, int first_token, int warp, int lane) {
    return {first_output + 16 * warp + lane / 4, end, first_token + lane % 4 * 2};
  }
  __device__ int64_t output_of(int e) const { return output + e / 2 * 8; }
  __device__ int64_t token_of(int j, int e) const { return token + 8 * j + e % 2; }
  __device__ bool stored(int64_t tokens, int j, int e) const { return output_of(e) < end && token_of(j, e) < tokens; }
};

// For a thread's two outputs, output_of(0) and output_of(2).
template <int kTokenTiles>
__device__ __forceinline__ void add_bias(float (&acc)[kTokenTiles][4], const float (&bias)[2]) {
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[j][e] = __fadd_rn(acc[j][e], bias[e / 2]);
}

// Called by one thread. load_w(ring, step) loads what no other kernel changes, so the first stages' weights are loaded
// before earlier kernels have ended; load_x(ring, step) loads the rest of the stage.
template <class LoadW, class LoadX>
__device__ __forceinline__ void fill_ring(CopyRing ring, int steps, const LoadW& load_w, const LoadX& load_x) {
  const int stages = min(steps, ring.stages);
#pragma unroll 1
  for (int step = 0; step < stages; ++step, ring.next()) load_w(ring, step);
  ring.stage = 0, ring.parity = 0;
  wait_for_previous();
#pragma unroll 1
  for (int step = 0; step < stages; ++step, ring.next()) load_x(ring, step);
#pragma unroll 1
  for (int step = stages; step < steps; ++step, ring.next()) {
    barrier_wait(ring.empty(), ring.parity ^ 1);
    load_w(ring, step);
    load_x(ring, step);
  }
}

// The maps of S's x and weight, for fill_with_boxes.
template <class S>
CUtensorMap x_map(const Operand& x) {
  return boxes_map(x, S::kTokens, S::kBoxes);
}
template <class S>
CUtensorMap w_map(const Operand& w) {
  static_assert(S::kBoxes % S::kCluster == 0);
  return boxes_map(w, S::kRows, S::kBoxes / S::kCluster);
}
// fill_ring with TMA boxes: kTokens rows of x from first_token on (unless S::kKeepsX), kRows rows of w from first_row
// on.
template <class S>
__device__ __forceinline__ void fill_with_boxes(const CopyRing& ring, const CUtensorMap& x, int first_token,
                                                const CUtensorMap& w, int first_row, int steps) {
  const auto load_w = [&](const CopyRing& at, int step) {
    barrier_expect(at.full(), S::kStageBytes);
    const uint32_t to = at.at() + S::kStageXBytes;
    if constexpr (S::kCluster == 1) {
      copy_boxes(to, w, step * S::kBoxes, first_row, at.full());
    } else {
      const int mine = cluster_rank() * (S::kBoxes / S::kCluster);
      copy_boxes_to_blocks(to + mine * S::kWBytes, w, step * S::kBoxes + mine, first_row, at.full(),
                           (1 << S::kCluster) - 1);
    }
  };
  const auto load_x = [&](const CopyRing& at, int step) {
    if constexpr (!S::kKeepsX) copy_boxes(at.at(), x, step * S::kBoxes, first_token, at.full());
  };
  fill_ring(ring, steps, load_w, load_x);
}

// In a cluster, a stage is filled by several blocks, and so released at the barriers of all; but stages that are not
// filled again are not released, so that each arrival is waited for, and none comes to a block that has ended.
// kReleasesNext: one stage more is released and waited for, the one that a further step would fill (free_stage).
// tile: where the warpgroup's outputs begin in a box.
template <class S, bool kReleasesNext>
__device__ void accumulate_tile(float (&acc)[S::kTokenTiles][4], int steps, CopyRing ring, uint32_t tile, int lane) {
  wgmma_fence();
  uint32_t previous = 0;  // the `empty` barrier of the previous stage
#pragma unroll 1
  for (int step_of_ring = 0; step_of_ring < steps; ++step_of_ring, ring.next()) {
    barrier_wait(ring.full(), ring.parity);
    const uint64_t x = S::x_descriptor(ring, step_of_ring), w = S::w_descriptor(ring, tile);
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
#pragma unroll
      for (int k = 0; k < kBoxColumns / 16; ++k)
        step(acc, moved(w, b * S::kWBoxUnits + column_step(k)), moved(x, b * S::kXBoxUnits + column_step(k)));
    wgmma_commit();
    wgmma_wait<1>();
    if constexpr (S::kCluster > 1) {
      if (step_of_ring > 0 && step_of_ring <= steps - S::kStages + kReleasesNext && lane < S::kCluster)
        barrier_arrive_at(previous, lane);
    } else {
      if (previous && lane == 0) barrier_arrive(previous);
    }
    previous = ring.empty();
  }
  wgmma_wait<0>();
  pin(acc);
}

// Two warpgroups have code of their own, behind a barrier each, so that the compiler keeps the matrix descriptors in
// uniform registers (docs/decisions/gpu-few-rows.md). The kernels of three share one loop: they wait for memory.
template <class S, bool kReleasesNext = false>
__device__ void accumulate_ring(float (&acc)[S::kTokenTiles][4], int steps, CopyRing ring, int warp, int lane) {
  constexpr uint32_t kApart = kTileOutputs * 128;
  if constexpr (S::kWarpgroups != 2) {
    accumulate_tile<S, kReleasesNext>(acc, steps, ring, S::kWarpgroups > 1 ? warp / 4 * kApart : 0, lane);
  } else if (warp < kWarpgroup / 32) {
    asm volatile("bar.sync 4, 128;\n" ::: "memory");
    accumulate_tile<S, kReleasesNext>(acc, steps, ring, 0, lane);
  } else {
    asm volatile("bar.sync 5, 128;\n" ::: "memory");
    accumulate_tile<S, kReleasesNext>(acc, steps, ring, kApart, lane);
  }
}

}  // namespace lockstep::kernels::cuda
