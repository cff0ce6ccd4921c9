// Products of up to 64 rows on compute capability 9.0. The copy engine fills a ring of stages in shared memory, a
// warpgroup walks them: outputs are the rows of wgmma's 64-row tile, tokens its columns, so that an output's chain is
// the same groups of 16 in order as everywhere. A block has few outputs, so that every multiprocessor has a block where
// N is small; of the 64 rows of the tile those beyond them are computed from whatever lies there and dropped.
//
// The weight does not depend on what other kernels do: the ring fills before they have ended (launch_early). Several
// products of one x make one launch: a layer's, and those with the adapter's A, which have a few blocks of their own.
#include <algorithm>
#include <array>

#include "kernels/cuda/linear_ring.cuh"

namespace lockstep::kernels::cuda {
namespace {

// One product of a launch.
struct Part {
  CUtensorMap w;
  ProductEnd end;
  int64_t outputs = 0;
  int tokens = 0;
  int rows = 0, first_block = 0;  // outputs of a block
};
template <int kParts>
struct Parts {
  CUtensorMap x;
  Part part[kParts];  // those of fewer blocks first
  int64_t depth = 0;
  int count = 0;
};

template <class S>
__device__ void load_ring(const CUtensorMap& x, const Part& p, int steps, int output, CopyRing ring) {
  const auto load = [&](const CUtensorMap& map, int step, uint32_t at, uint32_t box_bytes, int row) {
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
      copy_box(at + b * box_bytes, map, (step * S::kBoxes + b) * kBoxColumns, row, ring.full());
  };
  const auto load_w = [&](int step) {
    barrier_expect(ring.full(), S::kBoxes * (S::kXBytes + 128 * p.rows));
    load(p.w, step, ring.at() + S::kBoxes * S::kXBytes, S::kWBytes, output);
  };
  const auto load_x = [&](int step) { load(x, step, ring.at(), S::kXBytes, 0); };
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

template <class S>
__device__ void multiply(const Part& p, const Place& place, int steps, const CopyRing& ring, int lane) {
  float residual[S::kTokenTiles][4], acc[S::kTokenTiles][4] = {};
  // Asked for before the chain, so that its end does not wait for memory.
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool there = p.end.residual && place.stored(p.tokens, j, e);
      residual[j][e] = there ? p.end.residual_at(place.token_of(j, e), place.output_of(e)) : 0;
    }
  walk_ring<S>(acc, steps, ring, lane);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!place.stored(p.tokens, j, e)) continue;
      const int64_t output = place.output_of(e);
      float value = p.end.bias ? __fadd_rn(acc[j][e], p.end.bias[output]) : acc[j][e];
      if (p.end.residual) value = __fadd_rn(value, residual[j][e]);
      p.end.store(place.token_of(j, e), output, value);
    }
}

template <class S, int kParts>
__global__ void __launch_bounds__(kWarpgroup + 32) ring_kernel(const __grid_constant__ Parts<kParts> parts) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t unaligned[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int block = static_cast<int>(blockIdx.x);
    int which = 0;
    if constexpr (kParts > 1)
      while (which + 1 < parts.count && block >= parts.part[which + 1].first_block) ++which;
    const Part& p = parts.part[which];
    const int64_t output = int64_t{block - p.first_block} * p.rows;
    const int steps = static_cast<int>((parts.depth + S::kBoxes * kBoxColumns - 1) / (S::kBoxes * kBoxColumns));
    const CopyRing ring{.shared = (shared_address(unaligned) + 1023) / 1024 * 1024,
                        .stage_bytes = S::kStageBytes,
                        .stages = S::kStages,
                        .slack_bytes = S::kSlackBytes};
    if (threadIdx.x == 0) ring.init(kWarpgroup / 32);
    __syncthreads();
    let_next_begin();
    if (warp == kWarpgroup / 32) {
      if (lane == 0) load_ring<S>(parts.x, p, steps, static_cast<int>(output), ring);
      return;
    }
    wait_for_previous();
    multiply<S>(p, Place::of(output, min(p.outputs, output + p.rows), warp, lane), steps, ring, lane);
  } else {
    __trap();
  }
}

// Small products are cut into tiles of 16 outputs: their blocks then end before those of the large one.
constexpr int kSmallRows = 16;

template <class S, int kParts>
void launch_parts(std::span<const Product> products, cudaStream_t stream) {
  if (products[0].x.rows == 0 || products[0].outputs == 0) return;
  allow_shared<ring_kernel<S, kParts>>(S::kSharedBytes);
  Parts<kParts> parts;
  parts.x = box_map(products[0].x, kBoxColumns, S::kTokens);
  parts.depth = products[0].x.cols;
  int blocks = 0;
  for (size_t i = products.size(); i-- > 0;) {
    const Product& p = products[i];
    const int rows = i == 0 ? S::kRows : kSmallRows;
    parts.part[parts.count++] = {.w = box_map(p.w, kBoxColumns, rows),
                                 .end = p.end,
                                 .outputs = p.outputs,
                                 .tokens = static_cast<int>(p.x.rows),
                                 .rows = rows,
                                 .first_block = blocks};
    blocks += static_cast<int>((p.outputs + rows - 1) / rows);
  }
  launch_early(ring_kernel<S, kParts>, static_cast<unsigned>(blocks), kWarpgroup + 32, S::kSharedBytes, stream, parts);
  check_launch("linear");
}

template <class S>
void launch(const Product& p, cudaStream_t stream) {
  launch_parts<S, 1>({&p, 1}, stream);
}

// The first is the large one.
template <class S>
void launch_together(std::span<const Product> products, cudaStream_t stream) {
  launch_parts<S, kMostTogether>(products, stream);
}

template <int kTokens, int kRows, int kBoxes>
constexpr SmallKernel kernel_of() {
  using S = Shape<kTokens, kRows, kBoxes>;
  return {.tokens = kTokens,
          .rows = kRows,
          .shared_bytes = S::kSharedBytes,
          .launch = launch<S>,
          .launch_together = launch_together<S>};
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
