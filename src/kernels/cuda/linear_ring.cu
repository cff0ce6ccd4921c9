// Products of up to 64 rows on compute capability 9.0. The copy engine fills a ring of stages in shared memory, a
// warpgroup walks them: outputs are the rows of wgmma's 64-row tile, tokens its columns, so that an output's chain is
// the same groups of 16 in order as everywhere. A block has few outputs, so that every multiprocessor has a block where
// N is small; of the 64 rows of the tile those beyond them are computed from whatever lies there and dropped.
//
// The weight does not depend on what other kernels do: the ring fills before they have ended (launch_early).
//
// With an adapter the first blocks make h = x A, which is one more product of x: its outputs are units of 16 columns of
// A [K, rank], whose rows are the contraction (MN-major).
#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/copy_engine.cuh"
#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kBoxColumns = 64;   // of the contraction: 128 bytes, the width of the copy engine's swizzle
constexpr int kTileOutputs = 64;  // rows of a wgmma

template <int kTokens_, int kRows_, int kBoxes_>
struct Shape {
  static constexpr int kTokens = kTokens_, kRows = kRows_, kBoxes = kBoxes_;  // boxes of one stage
  [[maybe_unused]] static constexpr int kTokenTiles = kTokens / 8;
  static constexpr uint32_t kXBytes = kTokens * 128, kWBytes = kRows * 128;
  static constexpr uint32_t kStageBytes = kBoxes * (kXBytes + kWBytes);
  static constexpr uint32_t kSlackBytes = (kTileOutputs - kRows) * 128;  // the last box's tile reaches beyond the ring
  static constexpr uint32_t kFixedBytes = 1024 + kSlackBytes + CopyRing::kBarrierBytes;
  static constexpr int kStages = std::min<int>(CopyRing::kMostStages, (kMostShared - kFixedBytes) / kStageBytes);
  static constexpr size_t kSharedBytes = kFixedBytes + kStages * kStageBytes;
};

struct Maps {
  CUtensorMap x, w;
};

constexpr int kUnit = InnerProducts::kUnit;
constexpr uint32_t kUnitBytes = kUnit * kBoxColumns * sizeof(bf16);

// Which columns of which A; `cols` of the 16 exist.
struct InnerUnit {
  int16_t map = 0, column = 0, cols = 0, h_begin = 0;
};
struct InnerMaps {
  CUtensorMap a[kMostInner];
  InnerUnit unit[InnerProducts::kMostUnits];
  int units = 0;
  bf16* h = nullptr;
  int64_t h_stride = 0;
};
struct NoInner {};

#define LOCKSTEP_TOKENS(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define LOCKSTEP_STEP(tokens, sums, w, x, transposed)                                                                \
  "wgmma.mma_async.sync.aligned.m64n" tokens "k16.f32.bf16.bf16 {" sums "}, " w ", " x ", 1, 1, 1, " transposed ", " \
                                                                                                                "0;\n"
// d += w x^T, 64 outputs x 8 kTiles tokens x 16 of the contraction. w: K-major (kUnits: MN-major).
template <bool kUnits>
__device__ __forceinline__ void step(float (&d)[1][4], uint64_t w, uint64_t x) {
  asm volatile(LOCKSTEP_STEP("8", "%0, %1, %2, %3", "%4", "%5", "%6")
               : LOCKSTEP_TOKENS(d, 0)
               : "l"(w), "l"(x), "n"(int{kUnits}));
}
template <bool kUnits>
__device__ __forceinline__ void step(float (&d)[2][4], uint64_t w, uint64_t x) {
  asm volatile(LOCKSTEP_STEP("16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10")
               : LOCKSTEP_TOKENS(d, 0), LOCKSTEP_TOKENS(d, 1)
               : "l"(w), "l"(x), "n"(int{kUnits}));
}
template <bool kUnits>
__device__ __forceinline__ void step(float (&d)[4][4], uint64_t w, uint64_t x) {
  asm volatile(
      LOCKSTEP_STEP("32", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%17", "%18")
      : LOCKSTEP_TOKENS(d, 0), LOCKSTEP_TOKENS(d, 1), LOCKSTEP_TOKENS(d, 2), LOCKSTEP_TOKENS(d, 3)
      : "l"(w), "l"(x), "n"(int{kUnits}));
}
template <bool kUnits>
__device__ __forceinline__ void step(float (&d)[8][4], uint64_t w, uint64_t x) {
  asm volatile(LOCKSTEP_STEP("64",
                             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                             "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
                             "%32", "%33", "%34")
               : LOCKSTEP_TOKENS(d, 0), LOCKSTEP_TOKENS(d, 1), LOCKSTEP_TOKENS(d, 2), LOCKSTEP_TOKENS(d, 3),
                 LOCKSTEP_TOKENS(d, 4), LOCKSTEP_TOKENS(d, 5), LOCKSTEP_TOKENS(d, 6), LOCKSTEP_TOKENS(d, 7)
               : "l"(w), "l"(x), "n"(int{kUnits}));
}
#undef LOCKSTEP_STEP
#undef LOCKSTEP_TOKENS

// A tile whose rows of 128 bytes are swizzled; 1024 bytes from 8 rows to the next 8.
__device__ __forceinline__ uint64_t descriptor(uint32_t tile) {
  constexpr uint64_t kEightRows = 1024 / 16;
  return uint64_t{1} << 62 | kEightRows << 32 | uint64_t{1} << 16 | (tile & 0x3ffff) >> 4;
}

// What a block multiplies x with: some outputs of the base, or units of A.
template <class S>
struct Outputs {
  static constexpr bool kUnits = false;
  const CUtensorMap& map;
  int first;

  __device__ static uint64_t tile(uint32_t box) { return descriptor(box); }
  __host__ __device__ static constexpr int step(int k) { return column_step(k); }
  __device__ uint32_t box_bytes() const { return S::kWBytes; }
  __device__ void copy(uint32_t box, int column, uint32_t barrier) const { copy_box(box, map, column, first, barrier); }
};
template <class S>
struct Units {
  static constexpr bool kUnits = true;
  static constexpr int kMost = S::kRows / kUnit;
  const InnerMaps& inner;
  int first, count;

  // Units of 64 rows of 32 bytes, swizzled; 256 bytes from 8 rows to the next 8.
  __device__ static uint64_t tile(uint32_t box) {
    constexpr uint64_t kEightRows = 256 / 16, kNextUnit = kUnitBytes / 16;
    return uint64_t{3} << 62 | kEightRows << 32 | kNextUnit << 16 | (box & 0x3ffff) >> 4;
  }
  __host__ __device__ static constexpr int step(int k) { return k * (16 * 32 / 16); }
  __device__ uint32_t box_bytes() const { return count * kUnitBytes; }
  __device__ void copy(uint32_t box, int column, uint32_t barrier) const {
    for (int u = 0; u < count; ++u) {
      const InnerUnit& unit = inner.unit[first + u];
      copy_box(box + u * kUnitBytes, inner.a[unit.map], unit.column, column, barrier);
    }
  }
};

template <class S, class Weight>
__device__ void load_ring(const CUtensorMap& x, const Weight& weight, int steps, CopyRing ring) {
  const auto load_w = [&](int step) {
    barrier_expect(ring.full(), S::kBoxes * (S::kXBytes + weight.box_bytes()));
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
      weight.copy(ring.at() + S::kBoxes * S::kXBytes + b * S::kWBytes, (step * S::kBoxes + b) * kBoxColumns,
                  ring.full());
  };
  const auto load_x = [&](int step) {
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
      copy_box(ring.at() + b * S::kXBytes, x, (step * S::kBoxes + b) * kBoxColumns, 0, ring.full());
  };
  const int first = min(steps, S::kStages);
  for (int step = 0; step < first; ++step, ring.next()) load_w(step);
  ring.stage = 0, ring.parity = 0;
  wait_for_previous();
  for (int step = 0; step < first; ++step, ring.next()) load_x(step);
  for (int step = first; step < steps; ++step, ring.next()) {
    barrier_wait(ring.empty(), ring.parity ^ 1);
    load_w(step);
    load_x(step);
  }
}

// Where accumulators lie: acc[j][e] is token token + 8 j + e % 2, output output + 8 (e / 2).
struct Place {
  int64_t output, end;
  int token;

  template <class S>
  __device__ static Place of(const Product& p, int64_t first_output, int warp, int lane) {
    return {first_output + 16 * warp + lane / 4, min(p.outputs, first_output + S::kRows), lane % 4 * 2};
  }
  __device__ int64_t output_of(int e) const { return output + e / 2 * 8; }
  __device__ int64_t token_of(int j, int e) const { return token + 8 * j + e % 2; }
  __device__ bool stored(const Product& p, int j, int e) const {
    return output_of(e) < end && token_of(j, e) < p.x.rows;
  }
};

template <class S, class Weight>
__device__ void walk_ring(float (&acc)[S::kTokenTiles][4], int steps, CopyRing ring, int lane) {
  begin_products();
  uint32_t walked = 0;  // the barrier of the stage before
  for (int step_of_ring = 0; step_of_ring < steps; ++step_of_ring, ring.next()) {
    barrier_wait(ring.full(), ring.parity);
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b) {
      const uint64_t x = descriptor(ring.at() + b * S::kXBytes);
      const uint64_t w = Weight::tile(ring.at() + S::kBoxes * S::kXBytes + b * S::kWBytes);
#pragma unroll
      for (int k = 0; k < kBoxColumns / 16; ++k) step<Weight::kUnits>(acc, w + Weight::step(k), x + column_step(k));
    }
    commit_products();
    wait_products<1>();
    if (walked && lane == 0) barrier_arrive(walked);
    walked = ring.empty();
  }
  wait_products<0>();
  pin(acc);
}

template <class S>
__device__ void multiply(const Product& p, const Place& place, int steps, const CopyRing& ring, int lane) {
  float residual[S::kTokenTiles][4], acc[S::kTokenTiles][4] = {};
  // Asked for before the chain, so that its end does not wait for memory.
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool there = p.end.residual && place.stored(p, j, e);
      residual[j][e] = there ? p.end.residual_at(place.token_of(j, e), place.output_of(e)) : 0;
    }
  walk_ring<S, Outputs<S>>(acc, steps, ring, lane);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!place.stored(p, j, e)) continue;
      const int64_t output = place.output_of(e);
      float value = p.end.bias ? __fadd_rn(acc[j][e], p.end.bias[output]) : acc[j][e];
      if (p.end.residual) value = __fadd_rn(value, residual[j][e]);
      p.end.store(place.token_of(j, e), output, value);
    }
}

// A warp has the rows of one unit.
template <class S>
__device__ void multiply_inner(const Product& p, const Units<S>& units, int steps, const CopyRing& ring, int warp,
                               int lane) {
  float acc[S::kTokenTiles][4] = {};
  walk_ring<S, Units<S>>(acc, steps, ring, lane);
  if (warp >= units.count) return;
  const InnerUnit& unit = units.inner.unit[units.first + warp];
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = lane % 4 * 2 + 8 * j + e % 2, column = lane / 4 + e / 2 * 8;
      if (token < p.x.rows && column < unit.cols)
        units.inner.h[token * units.inner.h_stride + unit.h_begin + column] = __float2bfloat16_rn(acc[j][e]);
    }
}

template <class S, class Inner>
__global__ void __launch_bounds__(kWarpgroup + 32)
    ring_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Product p,
                const __grid_constant__ Inner inner) {
  if constexpr (kHasWgmma) {
    constexpr bool kAdapted = std::is_same_v<Inner, InnerMaps>;
    extern __shared__ __align__(1024) uint8_t unaligned[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int steps = static_cast<int>((p.x.cols + S::kBoxes * kBoxColumns - 1) / (S::kBoxes * kBoxColumns));
    const CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                        .stage_bytes = S::kStageBytes,
                        .stages = S::kStages,
                        .slack_bytes = S::kSlackBytes};
    if (threadIdx.x == 0) ring.init(kWarpgroup / 32);
    __syncthreads();
    let_next_begin();
    int block = static_cast<int>(blockIdx.x);
    if constexpr (kAdapted) {
      constexpr int kMost = Units<S>::kMost;
      const int inner_blocks = (inner.units + kMost - 1) / kMost;
      if (block < inner_blocks) {
        const Units<S> units{inner, block * kMost, min(kMost, inner.units - block * kMost)};
        if (warp == kWarpgroup / 32) {
          if (lane == 0) load_ring<S>(maps.x, units, steps, ring);
          return;
        }
        wait_for_previous();
        return multiply_inner<S>(p, units, steps, ring, warp, lane);
      }
      block -= inner_blocks;
    }
    const int output = block * S::kRows;
    if (warp == kWarpgroup / 32) {
      if (lane == 0) load_ring<S>(maps.x, Outputs<S>{maps.w, output}, steps, ring);
      return;
    }
    wait_for_previous();
    multiply<S>(p, Place::of<S>(p, output, warp, lane), steps, ring, lane);
  } else {
    __trap();
  }
}

template <class S, class Inner>
void launch_with(const Product& p, const Inner& inner, int inner_blocks, cudaStream_t stream) {
  if (p.x.rows == 0 || p.outputs == 0) return;
  allow_shared<ring_kernel<S, Inner>>(S::kSharedBytes);
  const auto blocks = static_cast<unsigned>((p.outputs + S::kRows - 1) / S::kRows + inner_blocks);
  const Maps maps{box_map(p.x, kBoxColumns, S::kTokens), box_map(p.w, kBoxColumns, S::kRows)};
  launch_early(ring_kernel<S, Inner>, blocks, kWarpgroup + 32, S::kSharedBytes, stream, maps, p, inner);
  check_launch("linear");
}

template <class S>
void launch(const Product& p, cudaStream_t stream) {
  launch_with<S>(p, NoInner(), 0, stream);
}

template <class S>
void launch_adapted(const Product& p, const InnerProducts& products, cudaStream_t stream) {
  InnerMaps inner{.h = products.h, .h_stride = products.h_stride};
  for (int i = 0; i < products.count; ++i) {
    const Operand& a = products.a[i];
    inner.a[i] = box_map(a, kUnit, kBoxColumns);
    for (int column = 0; column < a.cols; column += kUnit)
      inner.unit[inner.units++] = {.map = static_cast<int16_t>(i),
                                   .column = static_cast<int16_t>(column),
                                   .cols = static_cast<int16_t>(std::min<int64_t>(kUnit, a.cols - column)),
                                   .h_begin = static_cast<int16_t>(products.h_begin[i] + column)};
  }
  launch_with<S>(p, inner, (inner.units + Units<S>::kMost - 1) / Units<S>::kMost, stream);
}

template <int kTokens, int kRows, int kBoxes>
constexpr SmallKernel kernel_of() {
  using S = Shape<kTokens, kRows, kBoxes>;
  return {.tokens = kTokens,
          .rows = kRows,
          .shared_bytes = S::kSharedBytes,
          .launch = launch<S>,
          .launch_adapted = launch_adapted<S>};
}

// From few outputs to many; of long stages where they are small.
template <int kTokens, int kBoxes>
constexpr std::array<SmallKernel, 4> kernels_of() {
  return {kernel_of<kTokens, 16, 2 * kBoxes>(), kernel_of<kTokens, 24, kBoxes>(), kernel_of<kTokens, 48, kBoxes>(),
          kernel_of<kTokens, 64, kBoxes>()};
}

}  // namespace

std::span<const SmallKernel> ring_kernels(int64_t rows) {
  static const std::array of_8 = kernels_of<8, 4>(), of_16 = kernels_of<16, 4>(), of_32 = kernels_of<32, 2>(),
                          of_64 = kernels_of<64, 2>();
  if (!has_copy_engine() || rows > kRingRows) return {};
  return rows <= 8 ? of_8 : rows <= 16 ? of_16 : rows <= 32 ? of_32 : of_64;
}

}  // namespace lockstep::kernels::cuda
