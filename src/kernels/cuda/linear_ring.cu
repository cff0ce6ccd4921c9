// Products of up to 64 rows on compute capability 9.0. The copy engine fills a ring of stages in shared memory, a
// warpgroup walks them: outputs are the rows of wgmma's 64-row tile, tokens its columns, so that an output's chain is
// the same groups of 16 in order as everywhere. A block has few outputs, so that every multiprocessor has a block where
// N is small; of the 64 rows of the tile those beyond them are computed from whatever lies there and dropped.
//
// The weight does not depend on what other kernels do: the ring fills before they have ended (launch_early).
//
// With an adapter the first blocks make h = x A, one more product of x: a block has 16 columns of A [K, rank], whose
// rows are the contraction. Rows of 32 bytes are slow work for the copy engine, so a warp copies them.
#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cuda/linear_ring.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Maps {
  CUtensorMap x, w;
};
struct NoInner {};

// load_w(step, stage of the ring) and load_x, by every thread that fills: the weight before other kernels have ended.
template <class S, class LoadW, class LoadX>
__device__ void fill_ring(int steps, CopyRing ring, const LoadW& load_w, const LoadX& load_x) {
  const int first = min(steps, S::kStages);
  for (int step = 0; step < first; ++step, ring.next()) load_w(step, ring);
  ring.stage = 0, ring.parity = 0;
  wait_for_previous();
  for (int step = 0; step < first; ++step, ring.next()) load_x(step, ring);
  for (int step = first; step < steps; ++step, ring.next()) {
    barrier_wait(ring.empty(), ring.parity ^ 1);
    load_w(step, ring);
    load_x(step, ring);
  }
}

template <class S>
__device__ void copy_x(const CUtensorMap& x, int step, const CopyRing& ring) {
#pragma unroll
  for (int b = 0; b < S::kBoxes; ++b)
    copy_box(ring.at() + b * S::kXBytes, x, (step * S::kBoxes + b) * kBoxColumns, 0, ring.full());
}

// By one thread.
template <class S>
__device__ void load_ring(const Maps& maps, int steps, int output, const CopyRing& ring) {
  const auto load_w = [&](int step, const CopyRing& at) {
    barrier_expect(at.full(), S::kStageBytes);
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
      copy_box(at.at() + S::kBoxes * S::kXBytes + b * S::kWBytes, maps.w, (step * S::kBoxes + b) * kBoxColumns, output,
               at.full());
  };
  fill_ring<S>(steps, ring, load_w, [&](int step, const CopyRing& at) { copy_x<S>(maps.x, step, at); });
}

// By a warp: columns `column` to `column + 15` of A; lane l has half a row, every 16th of them. A stage is full when
// the copies of all lanes and x have come.
template <class S>
__device__ void load_inner(const CUtensorMap& x, const Operand& a, int column, int steps, const CopyRing& ring,
                           int lane) {
  const int row = lane / 2, chunk = lane % 2;
  const bool inside = column + 8 * chunk < a.cols;
  const bf16* const from = a.data + column + 8 * chunk;
  const auto load_w = [&](int step, const CopyRing& at) {
    const uint32_t to = at.at() + S::kBoxes * S::kXBytes + 32 * row + 16 * (chunk ^ (row / 4 % 2));
    int64_t k = int64_t{step} * S::kBoxes * kBoxColumns + row;
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
#pragma unroll
      for (int part = 0; part < kBoxColumns / 16; ++part, k += 16) {
        const bool valid = inside && k < a.rows;
        copy_async_16(to + b * S::kWBytes + part * 512, valid ? from + k * a.stride : a.data, valid);
      }
    barrier_arrive_after_copies(at.full());
    if (lane == 0) barrier_expect(at.full(), S::kBoxes * S::kXBytes);
  };
  fill_ring<S>(steps, ring, load_w, [&](int step, const CopyRing& at) {
    if (lane == 0) copy_x<S>(x, step, at);
  });
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
  walk_ring<S>(acc, steps, ring, lane);
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

// The first 16 outputs of the tile, which are the first warp's.
template <class S>
__device__ void multiply_inner(bf16* h, int64_t h_stride, int64_t rows, int cols, int steps, const CopyRing& ring,
                               int warp, int lane) {
  float acc[S::kTokenTiles][4] = {};
  walk_ring<S, RowsAreDepth>(acc, steps, ring, lane);
  if (warp != 0) return;
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = lane % 4 * 2 + 8 * j + e % 2, column = lane / 4 + e / 2 * 8;
      if (token < rows && column < cols) h[token * h_stride + column] = __float2bfloat16_rn(acc[j][e]);
    }
}

template <class S>
__device__ void inner_block(const CUtensorMap& x, const Product& p, const InnerProducts& inner, int block, int steps,
                            const CopyRing& ring, int warp, int lane) {
  int pair = 0, column = block * kInnerColumns;
  for (; column >= inner.padded(pair); ++pair) column -= inner.padded(pair);
  if (warp == kWarpgroup / 32) return load_inner<S>(x, inner.a[pair], column, steps, ring, lane);
  wait_for_previous();
  multiply_inner<S>(inner.h + inner.h_begin[pair] + column, inner.h_stride, p.x.rows,
                    static_cast<int>(inner.a[pair].cols) - column, steps, ring, warp, lane);
}

template <class S, class Inner>
__global__ void __launch_bounds__(kWarpgroup + 32)
    ring_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Product p,
                const __grid_constant__ Inner inner) {
  if constexpr (kHasWgmma) {
    constexpr bool kAdapted = std::is_same_v<Inner, InnerProducts>;
    extern __shared__ __align__(1024) uint8_t unaligned[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int steps = static_cast<int>((p.x.cols + S::kBoxes * kBoxColumns - 1) / (S::kBoxes * kBoxColumns));
    const CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                        .stage_bytes = S::kStageBytes,
                        .stages = S::kStages,
                        .slack_bytes = S::kSlackBytes};
    int block = static_cast<int>(blockIdx.x);
    bool makes_h = false;
    if constexpr (kAdapted) {
      makes_h = block < inner.blocks;
      block -= makes_h ? 0 : inner.blocks;
    }
    if (threadIdx.x == 0) ring.init(kWarpgroup / 32, makes_h ? 33 : 1);
    __syncthreads();
    let_next_begin();
    if constexpr (kAdapted)
      if (makes_h) return inner_block<S>(maps.x, p, inner, block, steps, ring, warp, lane);
    const int output = block * S::kRows;
    if (warp == kWarpgroup / 32) {
      if (lane == 0) load_ring<S>(maps, steps, output, ring);
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
void launch_adapted(const Product& p, const InnerProducts& inner, cudaStream_t stream) {
  launch_with<S>(p, inner, inner.blocks, stream);
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
