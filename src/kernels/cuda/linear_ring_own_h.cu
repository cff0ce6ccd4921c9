// linear_ring.cu for a single pair of an adapter and up to 16 rows, where blocks of 16 outputs take at most half of the
// multiprocessors: each block computes h = x A for itself, in rows of the 64-row tile of wgmma that its outputs leave
// unused. No block waits for another one, and A is loaded with the weight, before x is there.
#include <algorithm>

#include "kernels/cuda/linear_fused.h"
#include "kernels/cuda/linear_ring_epilogue.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Maps {
  CUtensorMap x, w, a;
};

// Rows 0 to 15 of the tile are the ranks (warp 0), rows 16 to 31 the outputs (warp 1). A stage holds eight rows of all
// its boxes, then the next eight (row_groups_map), so that A and the weight, each copied as a whole, form the tiles.
template <int kTokens>
struct OwnH : Shape<kTokens, 2 * kHColumns, 4> {
  using Base = Shape<kTokens, 2 * kHColumns, 4>;
  using Base::kBoxes, Base::kRows, Base::kStageBytes, Base::kStageXBytes;
  static constexpr int kOutputs = kRows - kHColumns;
  // The last tile's wgmma reads 64 rows.
  static constexpr uint32_t kSlackBytes = (kTileOutputs - kRows) / 8 * kBoxes * 1024;
  static constexpr uint32_t kFixedBytes = 1024 + kSlackBytes + CopyRing::kBarrierBytes;
  static constexpr int kStages = std::min<int>(CopyRing::kMaxStages, (kMaxShared - kFixedBytes) / kStageBytes);
  static constexpr size_t kSharedBytes = kFixedBytes + kStages * kStageBytes;
  static constexpr int64_t kHeldColumns = kStages * kBoxes * kBoxColumns;
  static_assert(Base::kWarpgroups == 1 && Base::kCluster == 1 && !Base::kKeepsX);

  static constexpr uint32_t kWBoxUnits = 1024 / 16;
  __device__ static uint64_t w_descriptor(const CopyRing& ring, uint32_t) {
    return tile_descriptor(ring.at() + kStageXBytes, kBoxes * 1024);
  }
};

template <class S>
__device__ void load_ring(const Maps& maps, int output, int steps, const CopyRing& all) {
  const auto load_w = [&](const CopyRing& ring, int step) {
    barrier_expect(ring.full(), S::kStageBytes);
    const uint32_t to = ring.at() + S::kStageXBytes;
    copy_row_groups(to, maps.a, step * S::kBoxes, 0, ring.full());
    copy_row_groups(to + S::kBoxes * kHColumns * 128, maps.w, step * S::kBoxes, output / 8, ring.full());
  };
  const auto load_x = [&](const CopyRing& ring, int step) {
    copy_boxes(ring.at(), maps.x, step * S::kBoxes, 0, ring.full());
  };
  fill_ring(all, steps, load_w, load_x);
}

// Puts h where TileDelta::add_to expects what a block has received.
template <int kTokenTiles>
__device__ __forceinline__ void keep_h(uint32_t to, float (&h)[kTokenTiles][4], int rank, int lane) {
  const Place place = Place::of(0, rank, 0, 0, lane);
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (place.output_of(e) >= place.end) h[j][e] = 0;
    const uint2 words = words_of_h(h[j]);
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};\n" ::"r"(to + kReceivedTiles + j * kTileBytes + lane * 8),
                 "r"(words.x), "r"(words.y)
                 : "memory");
  }
  if (lane == 0) asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(to), "r"(0) : "memory");
}

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    own_h_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Matmul p,
                 const __grid_constant__ RanksAdapter<1> adapter) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int output = static_cast<int>(blockIdx.x) * S::kOutputs, steps = S::steps(p.x.cols);
    begin_ring<S>(shared);
    const CopyRing ring = ring_of<S>(shared);
    if (warp == S::kThreads / 32 - 1) {
      if (lane == 0) load_ring<S>(maps, output, steps, ring);
      return;
    }
    const Place place = Place::of(output - kHColumns, min(p.outputs, int64_t{output} + S::kOutputs), 0, warp, lane);
    const bool mine = warp > 0 && place.output_of(0) < place.end;
    const TileDelta<false, 1> b(adapter, mine ? place.output_of(0) : -1, mine ? place.output_of(2) : -1, lane);
    uint32_t residual[S::kTokenTiles][4] = {};
    float acc[S::kTokenTiles][4] = {};
    wait_for_previous();
    if (p.end.residual && mine) load_residual<S, uint16_t>(residual, p, place);
    accumulate_ring<S, true>(acc, steps, ring, warp, lane);
    // There is no wait until the stage is empty: a matmul that has completed has read the operands of all four warps.
    const uint32_t h = free_stage<S>(ring, steps).at();
    if (warp == 0) keep_h(h, acc, adapter.pair[0].rank, lane);
    wait_for_h<kWarpgroup>();
    if (mine) finish<S, uint16_t, RanksAdapter<1>>(acc, residual, p, b, place, h, lane);
  } else {
    __trap();
  }
}

template <class S>
void launch(const Matmul& p, const LoraShrinks& shrinks, int64_t blocks, cudaStream_t stream) {
  const RanksAdapter<1> adapter{ring_adapter<S>(p.x, shrinks)};
  const Maps maps{x_map<S>(p.x), row_groups_map(p.w, S::kOutputs, S::kBoxes),
                  row_groups_map(operand(shrinks.pairs.front().a), kHColumns, S::kBoxes)};
  allow_shared<own_h_kernel<S>>(S::kSharedBytes);
  launch_early(own_h_kernel<S>, static_cast<unsigned>(blocks), S::kThreads, S::kSharedBytes, stream, maps, p, adapter);
  check_launch("linear");
}

}  // namespace

bool ring_own_h(const Matmul& p, const LoraShrinks& shrinks, int multiprocessors, cudaStream_t stream) {
  constexpr int64_t kMaxRows = 16;
  const LoraPair& pair = shrinks.pairs.front();
  const int64_t outputs = OwnH<8>::kOutputs, blocks = (p.outputs + outputs - 1) / outputs;
  if (!has_copy_engine() || p.x.rows == 0 || p.outputs == 0 || p.x.rows > kMaxRows || 2 * blocks > multiprocessors ||
      p.end.y_f32 || p.outputs % 8 != 0 || !suits_boxes_map(p.x) || !suits_boxes_map(p.w))
    return false;
  if (shrinks.pairs.size() > 1 || pair.rank() == 0 || pair.rank() > kHColumns || pair.rank() % 8 != 0 ||
      pair.rank_rows.rows)
    return false;
  (p.x.rows <= 8 ? launch<OwnH<8>> : launch<OwnH<16>>)(p, shrinks, blocks, stream);
  return true;
}

}  // namespace lockstep::kernels::cuda
