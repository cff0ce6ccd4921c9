// Matmuls of up to 256 rows on compute capability 9.0. TMA fills a ring buffer of stages in shared memory, a warpgroup
// consumes them. Outputs are the rows of wgmma's 64-row tile and tokens its columns; an output is accumulated in
// the same groups of 16, in order, as everywhere. A block computes few outputs (or only some tokens), so that every
// multiprocessor has a block even where N is small; tile rows beyond a block's outputs are computed from whatever the
// memory holds and dropped.
//
// The weight does not depend on earlier kernels, so the ring is filled before they have ended (launch_early).
#include <algorithm>
#include <array>

#include "kernels/cuda/linear_ring_epilogue.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Maps {
  CUtensorMap x, w;
};

template <class S>
using ShapeOfH = HShape<S, kRingHTokens>;

template <class S, class T, class Adapter>
__device__ void multiply(const Matmul& p, const DeltaOf<Adapter, false>& b, const Place& place, int steps,
                         const CopyRing& ring, int warp, int lane) {
  uint32_t residual[S::kTokenTiles][4] = {};
  float acc[S::kTokenTiles][4] = {};
  const bool mine = place.output_of(0) < place.end;
  wait_for_previous();
  if (p.end.residual) load_residual<S, T>(residual, p, place);  // loaded early, so that the epilogue need not wait
  accumulate_ring<S, kExpands<Adapter>>(acc, steps, ring, warp, lane);
  if constexpr (kExpands<Adapter>) wait_for_h<S::kThreads>();
  if (!mine) return;
  finish<S, T, Adapter>(acc, residual, p, b, place, free_stage<S>(ring, steps).at(), lane);
}

// Blocks that compute h come first, then the matmul's: all outputs of the first tokens, of the next, and so on.
template <class S, class T, class Adapter, class Norm>
__global__ void __launch_bounds__(S::kThreads)
    ring_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Matmul p,
                const __grid_constant__ Adapter adapter, const __grid_constant__ Norm norm) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    // Blocks of h fill whole clusters.
    const int h_blocks = (adapter.blocks + S::kCluster - 1) / S::kCluster * S::kCluster;
    const int block = static_cast<int>(blockIdx.x) - h_blocks;
    const bool makes_h = kHasAdapter<Adapter> && block < 0;
    using H = ShapeOfH<S>;
    static_assert(!S::kKeepsX || S::kBoxes == H::kBoxes);  // the row is padded to whole stages of either
    // With a norm blocks of h part from the others behind it, so that its code is there once; without one before the
    // warps do (docs/decisions/gpu-few-rows.md).
    if constexpr (kHasAdapter<Adapter> && !S::kKeepsX) {
      if (S::kCluster > 1 && makes_h && static_cast<int>(blockIdx.x) >= adapter.blocks) return;
      if (makes_h) return h_block<H, kExpands<Adapter>>(adapter, p.x.rows, p.x.cols, shared, warp, lane);
    }
    const int across = static_cast<int>((p.outputs + S::kRows - 1) / S::kRows), steps = S::steps(p.x.cols);
    const int cluster = block / S::kCluster, output = cluster % across * S::kRows;
    const int first_token = (cluster / across * S::kCluster + block % S::kCluster) * S::kTokens;
    makes_h ? begin_ring<H>(shared) : begin_ring<S>(shared);
    const CopyRing ring = ring_of<S>(shared);
    wait_for_rings<S>();
    if (warp == S::kThreads / 32 - 1) {
      if constexpr (kHasAdapter<Adapter> && S::kKeepsX)
        if (makes_h) return load_h<H>(adapter, HBlock<H>::of(adapter, p.x.rows, p.x.cols), shared, lane);
      if (lane == 0) fill_with_boxes<S>(ring, maps.x, first_token, maps.w, output, steps);
      if constexpr (kExpands<Adapter>)
        receive_h<S>(adapter, ColumnBlocks::of(adapter, output, S::kRows, 0), first_token, free_stage<S>(ring, steps),
                     gridDim.x - h_blocks, lane);
    } else {
      const Place place = Place::of(output, min(p.outputs, int64_t{output} + S::kRows), first_token, warp, lane);
      const bool mine = !makes_h && place.output_of(0) < place.end;
      const DeltaOf<Adapter, false> b(adapter, mine ? place.output_of(0) : -1, mine ? place.output_of(2) : -1, lane);
      keep_normed_row<S>(p.x, norm, ring, warp, lane);
      if constexpr (kHasAdapter<Adapter> && S::kKeepsX)
        if (makes_h)
          return make_h<H, true>(adapter, HBlock<H>::of(adapter, p.x.rows, p.x.cols), p.x.rows, shared, warp, lane);
      multiply<S, T, Adapter>(p, b, place, steps, ring, warp, lane);
    }
    leave_rings<S>();
  } else {
    __trap();
  }
}

template <class S, class T, class Adapter, class Norm>
void launch_with(const Matmul& p, const Adapter& adapter, const Norm& norm, cudaStream_t stream) {
  const auto pieces = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
  const int64_t clusters = pieces(p.outputs, S::kRows) * pieces(p.x.rows, S::kTokens * S::kCluster);
  if (clusters == 0) return;
  const auto blocks = static_cast<unsigned>((clusters + pieces(adapter.blocks, S::kCluster)) * S::kCluster);
  constexpr size_t kShared = std::max(S::kSharedBytes, ShapeOfH<S>::kSharedBytes);
  allow_shared<ring_kernel<S, T, Adapter, Norm>>(kShared);
  const Maps maps{x_map<S>(p.x), w_map<S>(p.w)};
  launch_early_clusters(S::kCluster, ring_kernel<S, T, Adapter, Norm>, blocks, S::kThreads, kShared, stream, maps, p,
                        adapter, norm);
  check_launch("linear");
}

template <class S>
void launch(const Matmul& p, cudaStream_t stream) {
  p.end.y_f32 ? launch_with<S, uint32_t>(p, NoAdapter(), NoNorm(), stream)
              : launch_with<S, uint16_t>(p, NoAdapter(), NoNorm(), stream);
}
template <class S>
void launch_adapted(const Matmul& p, const LoraShrinks& shrinks, cudaStream_t stream) {
  const RingAdapter adapter = ring_adapter<ShapeOfH<S>>(p.x, shrinks);
  if (!shrinks.expands()) return launch_with<S, uint16_t>(p, RanksAdapter<0>{adapter}, NoNorm(), stream);
  with_groups(adapter, [&](const auto& ranks) { launch_with<S, uint16_t>(p, ranks, NoNorm(), stream); });
}
// One row that is normalized first. Stages of four boxes: with eight the compiler moves the matrix descriptors of some
// shapes for each group.
template <int kRows>
void launch_normed(const Matmul& p, const RowNorm& norm, const LoraShrinks* shrinks, cudaStream_t stream) {
  with_norm(p, norm, [&](const auto& of_row) {
    using S = Shape<8, kRows, 4, 1, std::remove_cvref_t<decltype(of_row)>::kWidest>;
    static_assert(received_blocks<S>() >= HExchange::kColumnBlocks);
    if (!shrinks) return launch_with<S, uint16_t>(p, NoAdapter(), of_row, stream);
    with_groups(ring_adapter<ShapeOfH<S>>(p.x, *shrinks),
                [&](const auto& ranks) { launch_with<S, uint16_t>(p, ranks, of_row, stream); });
  });
}

template <int kTokens, int kRows>
constexpr decltype(SmallKernel::launch_normed) launcher_of_normed() {
  if constexpr (kTokens == 8) return launch_normed<kRows>;
  return nullptr;
}

template <int kTokens, int kRows, int kBoxes, int kCluster = 1>
constexpr SmallKernel kernel_of() {
  using S = Shape<kTokens, kRows, kBoxes, kCluster>;
  return {.tokens = kTokens,
          .rows = kRows,
          .shared_bytes = S::kSharedBytes,
          .launch = launch<S>,
          .launch_adapted = launch_adapted<S>,
          .received_blocks = received_blocks<S>(),
          .launch_normed = launcher_of_normed<kTokens, kRows>(),
          .held_columns = S::kHeldColumns};
}

// Shapes from few to many outputs per block; small ones have long stages.
template <int kTokens, int kBoxes>
constexpr std::array<SmallKernel, 4> kernels_of() {
  return {kernel_of<kTokens, 16, 2 * kBoxes>(), kernel_of<kTokens, 24, kBoxes>(), kernel_of<kTokens, 48, kBoxes>(),
          kernel_of<kTokens, 64, kBoxes>()};
}
// With 32 outputs 4,096 of them take one block per multiprocessor.
std::array<SmallKernel, 5> kernels_of_8() {
  const std::array<SmallKernel, 4> some = kernels_of<8, 4>();
  return {some[0], some[1], kernel_of<8, 32, 4>(), some[2], some[3]};
}
// For small N: two blocks share the outputs, and each has half of the tokens.
std::array<SmallKernel, 6> kernels_of_32() {
  const std::array<SmallKernel, 4> whole = kernels_of<32, 2>();
  return {kernel_of<16, 16, 4>(), kernel_of<16, 32, 4>(), whole[0], whole[1], whole[2], whole[3]};
}
// With 64 rows such a pair of blocks is a cluster, which loads the weight once.
std::array<SmallKernel, 8> kernels_of_64() {
  const std::array<SmallKernel, 4> whole = kernels_of<64, 2>();
  return {kernel_of<32, 40, 4, 2>(),
          kernel_of<32, 32, 4, 2>(),
          kernel_of<32, 16, 4>(),
          kernel_of<32, 32, 4>(),
          whole[0],
          whole[1],
          whole[2],
          whole[3]};
}

// Above 64 rows the blocks of one output's tokens read the same weights through the L2 cache. That suits small N, where
// cuBLASLt has few blocks, and an adapter inside the launch saves two launches more.
std::array<SmallKernel, 6> kernels_of_many() {
  return {kernel_of<64, 32, 4>(),  kernel_of<64, 48, 2>(),  kernel_of<64, 64, 2>(),
          kernel_of<128, 16, 2>(), kernel_of<128, 32, 2>(), kernel_of<128, 64, 2>()};
}

// ---- h without the base's matmul ----

template <class S>
__global__ void __launch_bounds__(kRingThreads)
    h_kernel(const __grid_constant__ RingAdapter adapter, int64_t tokens, int64_t depth) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    h_block<S, false>(adapter, tokens, depth, shared, static_cast<int>(threadIdx.x) / 32,
                      static_cast<int>(threadIdx.x) % 32);
  } else {
    __trap();
  }
}

// More than one tile of rows: a block computes four groups of 16 columns of h, one per warp, whichever pairs they
// belong to. So few blocks that they fit beside a matmul of the library, and begin before it: they are on the main
// queue and begin before the kernel ahead has ended, which the library's matmul, behind an event, cannot. All tokens'
// blocks of the same columns form a cluster: its multiprocessors are in one part of the GPU, where the library's
// clusters still fit beside it, and its blocks take turns to load a box of A for all.
constexpr int kGroupsPerBlock = kTileOutputs / kHColumns;

struct HGroup {
  int pair = 0, column = 0;

  // Column group number `index` of all pairs.
  __device__ static HGroup of(const RingAdapter& adapter, int index) {
    int p = 0;
    while (p + 1 < adapter.count && index >= adapter.pair[p + 1].first_block) ++p;
    return {p, (index - adapter.pair[p].first_block) * kHColumns};
  }
};

template <class S>
__device__ void fill_groups(const RingAdapter& adapter, const CopyRing& all, int first_group, int groups,
                            int first_token, int steps) {
  const auto load_w = [&](const CopyRing& ring, int step) {
    barrier_expect(ring.full(), S::kBoxes * (S::kXBytes + 128 * kHColumns * groups));
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
      const HGroup group = HGroup::of(adapter, first_group + g);
#pragma unroll
      for (int b = 0; b < S::kBoxes; ++b) {
        const uint32_t to = ring.at() + S::kBoxes * S::kXBytes + b * S::kWBytes + g * 128 * kHColumns;
        if ((g * S::kBoxes + b) % S::kCluster == cluster_rank())
          copy_boxes_to_blocks(to, adapter.a[group.pair], step * S::kBoxes + b, group.column, ring.full(),
                               (1 << S::kCluster) - 1);
      }
    }
  };
  const auto load_x = [&](const CopyRing& ring, int step) {
    copy_boxes(ring.at(), adapter.x, step * S::kBoxes, first_token, ring.full());
  };
  fill_ring(all, steps, load_w, load_x);
}

template <class S>
__global__ void __launch_bounds__(kRingThreads)
    h_groups_kernel(const __grid_constant__ RingAdapter adapter, int64_t tokens, int64_t depth) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first_group = static_cast<int>(blockIdx.y) * kGroupsPerBlock, steps = S::steps(depth);
    const int groups = min(kGroupsPerBlock, adapter.column_blocks - first_group);
    const int first_token = static_cast<int>(blockIdx.x) * S::kTokens;
    begin_ring<S>(shared);
    const CopyRing ring = ring_of<S>(shared);
    wait_for_rings<S>();
    if (warp == kWarpgroup / 32) {
      if (lane == 0) fill_groups<S>(adapter, ring, first_group, groups, first_token, steps);
      leave_rings<S>();
      return;
    }
    wait_for_previous();
    float acc[S::kTokenTiles][4] = {};
    accumulate_ring<S>(acc, steps, ring, warp, lane);
    leave_rings<S>();
    if (warp >= groups) return;
    const HGroup group = HGroup::of(adapter, first_group + warp);
    const RingPair& pair = adapter.pair[group.pair];
    const Place place = Place::of(0, pair.rank - group.column, first_token, 0, lane);
    const HRows rows = HRows::of(adapter, pair, group.column, tokens);
    bf16* const h = adapter.h + pair.h_begin + group.column;
#pragma unroll
    for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (place.stored(tokens, j, e))
          h[place.token_of(j, e) * adapter.h_stride + place.output_of(e)] =
              __float2bfloat16_rn(rows.has(place.token_of(j, e)) ? acc[j][e] : 0.0f);
  } else {
    __trap();
  }
}

template <int kCluster>
void launch_h_groups(const Operand& x, const LoraShrinks& shrinks, cudaStream_t stream) {
  using S = Shape<kRingTileRows, kTileOutputs, 2, kCluster>;
  const RingAdapter adapter = ring_adapter<S, 1>(x, shrinks);
  const int64_t tokens = S::kTokens * kCluster;
  const dim3 grid(static_cast<unsigned>((x.rows + tokens - 1) / tokens * kCluster),
                  static_cast<unsigned>((adapter.column_blocks + kGroupsPerBlock - 1) / kGroupsPerBlock));
  allow_shared<h_groups_kernel<S>>(S::kSharedBytes);
  launch_early_clusters(kCluster, h_groups_kernel<S>, grid, kRingThreads, S::kSharedBytes, stream, adapter, x.rows,
                        x.cols);
}

template <int kTokens>
void launch_h(const Operand& x, const LoraShrinks& shrinks, cudaStream_t stream) {
  using S = Shape<kTokens, kHColumns, 4>;
  const RingAdapter adapter = ring_adapter<S>(x, shrinks);
  allow_shared<h_kernel<S>>(S::kSharedBytes);
  launch_early(h_kernel<S>, static_cast<unsigned>(adapter.blocks), kRingThreads, S::kSharedBytes, stream, adapter,
               x.rows, x.cols);
}

}  // namespace

bool ring_h(const Operand& x, const LoraShrinks& shrinks, cudaStream_t stream) {
  // Each block fills a multiprocessor, and a large matmul that runs beside it leaves few of them free.
  if (!has_copy_engine() || !suits_boxes_map(x) || x.rows > kRingRows) return false;
  if (x.rows > 2 * kRingTileRows)
    launch_h_groups<4>(x, shrinks, stream);
  else if (x.rows > kRingTileRows)
    launch_h_groups<2>(x, shrinks, stream);
  else
    (x.rows <= 8 ? launch_h<8> : launch_h<16>)(x, shrinks, stream);
  return true;
}

std::span<const SmallKernel> ring_kernels(const Matmul& p, int64_t rows) {
  static const std::array of_8 = kernels_of_8();
  static const std::array of_16 = kernels_of<16, 4>();
  static const std::array of_32 = kernels_of_32(), of_many = kernels_of_many();
  static const std::array of_64 = kernels_of_64();
  if (!has_copy_engine() || !suits_boxes_map(p.x) || !suits_boxes_map(p.w) || rows > kRingRows) return {};
  if (rows <= 8) return of_8;
  if (rows <= 16) return of_16;
  if (rows > kRingTileRows) return of_many;
  if (rows <= 32) return of_32;
  return of_64;
}

}  // namespace lockstep::kernels::cuda
