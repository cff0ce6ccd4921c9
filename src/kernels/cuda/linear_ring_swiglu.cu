// linear_ring.cu for gate_up: a block computes gates and ups of the same outputs, interleaved in groups of eight, so
// that a thread's accumulators hold both, and stores only the activation.
#include <algorithm>
#include <array>
#include <span>

#include "kernels/cuda/linear_fused.h"
#include "kernels/cuda/linear_ring_adapter.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Maps {
  CUtensorMap x, w;
};

// Prefers few blocks: with 48 outputs per block, 64 rows of gate_up occupy every multiprocessor of an H200.
constexpr int kHTokens = 32;
template <class S>
using ShapeOfH = HShape<S, kHTokens>;

template <class S>
__device__ void load_ring(const Maps& maps, int steps, int group, const CopyRing& all) {
  const auto load_w = [&](const CopyRing& ring, int step) {
    barrier_expect(ring.full(), S::kStageBytes);
    copy_slabs(ring.at() + S::kStageXBytes, maps.w, group, step * S::kBoxes, ring.full());
  };
  const auto load_x = [&](const CopyRing& ring, int step) {
    if constexpr (!S::kKeepsX) copy_boxes(ring.at(), maps.x, step * S::kBoxes, 0, ring.full());
  };
  prefetch_map(maps.w);
  if constexpr (!S::kKeepsX) prefetch_map(maps.x);
  fill_ring(all, steps, load_w, load_x);
}

template <class S, class Adapter>
__device__ void multiply(const Matmul& p, const DeltaOf<Adapter, true>& b, int64_t gate, bool stored, int steps,
                         const CopyRing& ring, int warp, int lane) {
  const int64_t up = p.outputs / 2 + gate;
  float acc[S::kTokenTiles][4] = {}, bias[2] = {};
  if (stored && p.end.bias) bias[0] = p.end.bias[gate], bias[1] = p.end.bias[up];
  wait_for_previous();
  accumulate_ring<S>(acc, steps, ring, warp, lane);
  if (p.end.bias) add_bias(acc, bias);
  if constexpr (kHasAdapter<Adapter>) {
    wait_for_h<S::kThreads>();
    if (stored) b.add_to(acc, free_stage<S>(ring, steps).at(), lane);
  }
  if (!stored) return;
  bf16* const y = static_cast<bf16*>(p.end.y) + gate;
  const int rows = static_cast<int>(p.x.rows), stride = static_cast<int>(p.end.y_stride);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + lane % 4 * 2 + i;
      if (token < rows) y[token * stride] = swiglu_of_sums(acc[j][i], acc[j][2 + i]);
    }
}

template <class S, class Adapter, class Norm>
__global__ void __launch_bounds__(S::kThreads)
    ring_swiglu_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Matmul p,
                       const __grid_constant__ Adapter adapter, const __grid_constant__ Norm norm) {
  if constexpr (kHasWgmma) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int block = static_cast<int>(blockIdx.x) - adapter.blocks;
    const bool makes_h = kHasAdapter<Adapter> && block < 0;
    constexpr int kLoader = S::kThreads / 32 - 1;
    using H = ShapeOfH<S>;
    static_assert(!S::kKeepsX || S::kBoxes == H::kBoxes);
    // As in linear_ring.cu.
    if constexpr (kHasAdapter<Adapter> && !S::kKeepsX)
      if (makes_h) return h_block<H, true, kLoader>(adapter, p.x.rows, p.x.cols, shared, warp, lane);
    const int first = block * S::kRows / 2, steps = S::steps(p.x.cols);
    makes_h ? begin_ring<H>(shared) : begin_ring<S>(shared);
    const CopyRing ring = ring_of<S>(shared);
    if (warp == kLoader) {
      if constexpr (kHasAdapter<Adapter> && S::kKeepsX)
        if (makes_h) return load_h<H>(adapter, HBlock<H>::of(adapter, p.x.rows, p.x.cols), shared, lane);
      if (lane == 0) load_ring<S>(maps, steps, first / 8, ring);
      if constexpr (kHasAdapter<Adapter>)
        receive_h<S>(adapter, ColumnBlocks::of(adapter, first, S::kRows / 2, static_cast<int>(p.outputs / 2)), 0,
                     free_stage<S>(ring, steps), gridDim.x - adapter.blocks, lane);
      return;
    }
    const int64_t gate = first + 8 * warp + lane / 4, up = p.outputs / 2 + gate;
    const bool stored = !makes_h && 16 * warp < S::kRows && up < p.outputs;
    const DeltaOf<Adapter, true> b(adapter, stored ? gate : -1, stored ? up : -1, lane);
    keep_normed_row<S>(p.x, norm, ring, warp, lane);
    if constexpr (kHasAdapter<Adapter> && S::kKeepsX)
      if (makes_h)
        return make_h<H, true>(adapter, HBlock<H>::of(adapter, p.x.rows, p.x.cols), p.x.rows, shared, warp, lane);
    multiply<S, Adapter>(p, b, gate, stored, steps, ring, warp, lane);
  } else {
    __trap();
  }
}

template <class S, class Adapter, class Norm>
void launch_with(const Matmul& p, const Adapter& adapter, const Norm& norm, cudaStream_t stream) {
  constexpr size_t kShared = std::max(S::kSharedBytes, ShapeOfH<S>::kSharedBytes);
  allow_shared<ring_swiglu_kernel<S, Adapter, Norm>>(kShared);
  const auto blocks = static_cast<unsigned>((p.outputs + S::kRows - 1) / S::kRows + adapter.blocks);
  const Maps maps{x_map<S>(p.x), slab_map(p.w, S::kRows, S::kBoxes, true)};
  launch_early(ring_swiglu_kernel<S, Adapter, Norm>, blocks, S::kThreads, kShared, stream, maps, p, adapter, norm);
  check_launch("linear");
}

template <class S, class Norm>
void launch_with(const Matmul& p, const LoraShrinks* shrinks, const Norm& norm, cudaStream_t stream) {
  if (!shrinks) return launch_with<S>(p, NoAdapter(), norm, stream);
  with_groups(ring_adapter<ShapeOfH<S>>(p.x, *shrinks),
              [&](const auto& adapter) { launch_with<S>(p, adapter, norm, stream); });
}
template <class S>
void launch(const Matmul& p, const RowNorm& norm, const LoraShrinks* shrinks, cudaStream_t stream) {
  if constexpr (S::kKeepsX)
    launch_with<S>(p, shrinks, RingNorm < S::kKeptColumns == kWidestWarpNorm ? 32 : 128 > {norm}, stream);
  else
    launch_with<S>(p, shrinks, NoNorm(), stream);
}

struct SwigluKernel {
  int rows;
  int64_t held_columns;  // SmallKernel::held_columns
  void (*launch)(const Matmul&, const RowNorm&, const LoraShrinks*, cudaStream_t);
};
template <class S>
constexpr SwigluKernel kernel_of() {
  static_assert(received_blocks<S>() >= HExchange::kColumnBlocks);  // gates and ups may be of all pairs
  return {S::kRows, S::kHeldColumns, launch<S>};
}
// kKeptColumns: for one row that is normalized first, with stages of four boxes as in linear_ring.cu.
template <int kTokens, int kBoxes, int kKeptColumns = 0>
constexpr std::array<SwigluKernel, 3> kernels_of() {
  return {kernel_of<Shape<kTokens, 16, kKeptColumns ? kBoxes : 2 * kBoxes, 1, kKeptColumns>>(),
          kernel_of<Shape<kTokens, 48, kBoxes, 1, kKeptColumns>>(),
          kernel_of<Shape<kTokens, 64, kBoxes, 1, kKeptColumns>>()};
}
// Adds a shape of several warpgroups. 96 outputs, for up to 8 tokens: gate_up of Qwen3-0.6B takes half of the
// multiprocessors (loads_beside), and that of 4B and 8B fewer waves of blocks. 160 outputs, for 64 tokens: a large N
// takes one block per multiprocessor, which reads x only once.
template <class Wide>
constexpr std::array<SwigluKernel, 4> and_wide(const std::array<SwigluKernel, 3>& narrow) {
  return {narrow[0], narrow[1], narrow[2], kernel_of<Wide>()};
}
constexpr std::array kOfWideNormed = kernels_of<8, 4, static_cast<int>(kWidestRingNorm)>();
constexpr std::array kOfNormed = and_wide<Shape<8, 96, 4, 1, kWidestWarpNorm>>(kernels_of<8, 4, kWidestWarpNorm>());
constexpr std::array kOf8 = and_wide<Shape<8, 96, 4>>(kernels_of<8, 4>());
constexpr std::array kOf16 = kernels_of<16, 4>(), kOf32 = kernels_of<32, 2>();
constexpr std::array kOf64 = and_wide<Shape<64, 160, 1>>(kernels_of<64, 2>());

}  // namespace

bool ring_swiglu(const Matmul& p, const RowNorm& norm, const LoraShrinks* adapter, int multiprocessors,
                 cudaStream_t stream) {
  if ((norm.weight && !suits_ring_norm(p, norm)) || !has_copy_engine() || p.x.rows == 0 || p.x.rows > kRingTileRows ||
      p.outputs == 0 || !suits_boxes_map(p.x) || !suits_slab_map(p.w, true))
    return false;
  const int64_t rows = p.x.rows;
  const auto kernels = [&]() -> std::span<const SwigluKernel> {
    if (norm.weight && p.x.cols > kWidestWarpNorm) return kOfWideNormed;
    if (norm.weight) return kOfNormed;
    if (rows <= 8) return kOf8;
    if (rows > 32) return kOf64;
    return rows <= 16 ? kOf16 : kOf32;
  }();
  const auto blocks_of = [&](const SwigluKernel& kernel) { return (p.outputs + kernel.rows - 1) / kernel.rows; };
  const int64_t h_blocks = adapter ? adapter->blocks(rows, kHTokens) : 0;
  // The load of the multiprocessor that finishes last; starting a block costs as much as some outputs.
  const auto longest = [&](const SwigluKernel& kernel) {
    constexpr int64_t kBeginning = 16;
    const int64_t blocks = blocks_of(kernel) + h_blocks;
    return (blocks + multiprocessors - 1) / multiprocessors * (kernel.rows + kBeginning);
  };
  auto chosen = std::ranges::find_if(kernels, [&](const SwigluKernel& kernel) {
    return loads_beside(p, blocks_of(kernel), kernel.held_columns, multiprocessors);
  });
  if (chosen == kernels.end()) chosen = std::ranges::min_element(kernels, {}, longest);
  chosen->launch(p, norm, adapter, stream);
  return true;
}

}  // namespace lockstep::kernels::cuda
