// Products of up to 64 rows on compute capability 9.0. The copy engine fills a ring of stages in shared memory, a
// warpgroup walks them: outputs are the rows of wgmma's 64-row tile, tokens its columns, so that an output's chain is
// the same groups of 16 in order as everywhere. A block has few outputs, so that every multiprocessor has a block where
// N is small, or a part of the tokens; of the 64 rows of the tile those beyond a block's outputs are computed from
// whatever lies there and dropped.
//
// The weight does not depend on what other kernels do: the ring fills before they have ended (launch_early). With an
// adapter the first blocks make h = x A, one more product of x; a block has 16 columns of h.
#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cuda/linear_ring.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Maps {
  CUtensorMap x, w;
};

constexpr int kInnerColumns = 16;
// The adapter's pairs as the kernel reads them.
struct Inner {
  CUtensorMap a[kMostInner];
  bf16* h[kMostInner];  // the first column
  int columns[kMostInner], first_block[kMostInner];
  int64_t h_stride = 0;
  int count = 0, blocks = 0;
};
struct NoInner {};

// The block's tile of tokens.
template <class S>
__device__ int first_token() {
  return static_cast<int>(blockIdx.y) * S::kTokens;
}

// By one thread: `rows` rows of w from `first` on, and the block's tokens.
template <class S>
__device__ void load_ring(const CUtensorMap& x, const CUtensorMap& w, int first, int rows, int steps,
                          const CopyRing& all) {
  const auto load = [&](const CopyRing& ring, const CUtensorMap& map, int step, uint32_t at, uint32_t bytes, int row) {
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b)
      copy_box(at + b * bytes, map, (step * S::kBoxes + b) * kBoxColumns, row, ring.full());
  };
  const auto load_w = [&](const CopyRing& ring, int step) {
    barrier_expect(ring.full(), S::kBoxes * (S::kXBytes + 128 * rows));
    load(ring, w, step, ring.at() + S::kBoxes * S::kXBytes, S::kWBytes, first);
  };
  const auto load_x = [&](const CopyRing& ring, int step) {
    load(ring, x, step, ring.at(), S::kXBytes, first_token<S>());
  };
  fill_ring(all, steps, load_w, load_x);
}

// The residual of a thread's accumulators, as it lies in memory; elements outside the product are those of its edge.
// There is no branch and no arithmetic between the loads: a thread that turned each into a float as it came would wait
// for memory 32 times.
template <class S>
__device__ void load_residual(uint32_t (&bits)[S::kTokenTiles][4], const Product& p, const Place& place) {
  const auto load = [&](const auto* from) {
#pragma unroll
    for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t token = min(place.token_of(j, e), p.x.rows - 1), output = min(place.output_of(e), place.end - 1);
        bits[j][e] = from[token * p.end.residual_stride + output];
      }
  };
  if (p.end.y_f32)
    load(static_cast<const uint32_t*>(p.end.residual));
  else
    load(static_cast<const uint16_t*>(p.end.residual));
}

template <class S>
__device__ void multiply(const Product& p, const Place& place, int steps, const CopyRing& ring, int lane) {
  uint32_t residual[S::kTokenTiles][4] = {};
  float acc[S::kTokenTiles][4] = {};
  if (p.end.residual) load_residual<S>(residual, p, place);  // so that the end of the chain does not wait for memory
  walk_ring<S>(acc, steps, ring, lane);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!place.stored(p.x.rows, j, e)) continue;
      const int64_t output = place.output_of(e);
      float value = p.end.bias ? __fadd_rn(acc[j][e], p.end.bias[output]) : acc[j][e];
      if (p.end.residual)
        value = __fadd_rn(value, __uint_as_float(p.end.y_f32 ? residual[j][e] : residual[j][e] << 16));
      p.end.store(place.token_of(j, e), output, value);
    }
}

// The first 16 outputs of the tile, which are the first warp's, to `columns` columns of h.
template <class S>
__device__ void multiply_inner(bf16* h, int64_t stride, int columns, int64_t tokens, int steps, const CopyRing& ring,
                               int warp, int lane) {
  float acc[S::kTokenTiles][4] = {};
  walk_ring<S>(acc, steps, ring, lane);
  if (warp != 0) return;
  const Place place = Place::of(0, columns, first_token<S>(), warp, lane);
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (place.stored(tokens, j, e))
        h[place.token_of(j, e) * stride + place.output_of(e)] = __float2bfloat16_rn(acc[j][e]);
}

template <class S>
__device__ void inner_block(const CUtensorMap& x, const Inner& inner, int64_t tokens, int block, int steps,
                            const CopyRing& ring, int warp, int lane) {
  int pair = 0;
  while (pair + 1 < inner.count && block >= inner.first_block[pair + 1]) ++pair;
  const int column = (block - inner.first_block[pair]) * kInnerColumns;
  if (warp == kWarpgroup / 32) {
    if (lane == 0) load_ring<S>(x, inner.a[pair], column, kInnerColumns, steps, ring);
    return;
  }
  bf16* const h = inner.h[pair] + column;
  const int64_t stride = inner.h_stride;
  const int columns = inner.columns[pair] - column;
  wait_for_previous();
  multiply_inner<S>(h, stride, columns, tokens, steps, ring, warp, lane);
}

template <class S, class Adapter>
__global__ void __launch_bounds__(kWarpgroup + 32)
    ring_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Product p,
                const __grid_constant__ Adapter inner) {
  if constexpr (kHasWgmma) {
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
    if constexpr (std::is_same_v<Adapter, Inner>) {
      if (block < inner.blocks) return inner_block<S>(maps.x, inner, p.x.rows, block, steps, ring, warp, lane);
      block -= inner.blocks;
    }
    const int64_t output = int64_t{block} * S::kRows;
    if (warp == kWarpgroup / 32) {
      if (lane == 0) load_ring<S>(maps.x, maps.w, static_cast<int>(output), S::kRows, steps, ring);
      return;
    }
    wait_for_previous();
    const Place place = Place::of(output, min(p.outputs, output + S::kRows), first_token<S>(), warp, lane);
    multiply<S>(p, place, steps, ring, lane);
  } else {
    __trap();
  }
}

template <class S, class Adapter>
void launch_with(const Product& p, const Adapter& inner, int inner_blocks, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.outputs + S::kRows - 1) / S::kRows + inner_blocks);
  if (p.x.rows == 0 || blocks == 0) return;
  allow_shared<ring_kernel<S, Adapter>>(S::kSharedBytes);
  const Maps maps{box_map(p.x, kBoxColumns, S::kTokens),
                  p.outputs > 0 ? box_map(p.w, kBoxColumns, S::kRows) : CUtensorMap{}};
  const dim3 grid(blocks, static_cast<unsigned>((p.x.rows + S::kTokens - 1) / S::kTokens));
  launch_early(ring_kernel<S, Adapter>, grid, kWarpgroup + 32, S::kSharedBytes, stream, maps, p, inner);
  check_launch("linear");
}

template <class S>
void launch(const Product& p, cudaStream_t stream) {
  launch_with<S>(p, NoInner(), 0, stream);
}

template <class S>
void launch_adapted(const Product& p, std::span<const InnerProduct> products, int64_t h_stride, cudaStream_t stream) {
  Inner inner{.h_stride = h_stride};
  for (const InnerProduct& product : products) {
    const int i = inner.count++;
    inner.a[i] = box_map(product.a, kBoxColumns, kInnerColumns);
    inner.h[i] = product.h;
    inner.columns[i] = static_cast<int>(product.a.rows);
    inner.first_block[i] = inner.blocks;
    inner.blocks += (inner.columns[i] + kInnerColumns - 1) / kInnerColumns;
  }
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
// Where N is small: two blocks share the outputs, and each brings half of x.
template <int kTokens, int kBoxes>
constexpr std::array<SmallKernel, 6> with_halves() {
  const std::array<SmallKernel, 4> whole = kernels_of<kTokens, kBoxes>();
  return {kernel_of<kTokens / 2, 16, 4>(), kernel_of<kTokens / 2, 32, 4>(), whole[0], whole[1], whole[2], whole[3]};
}

}  // namespace

std::span<const SmallKernel> ring_kernels(int64_t rows) {
  static const std::array of_8 = kernels_of<8, 4>(), of_16 = kernels_of<16, 4>();
  static const std::array of_32 = with_halves<32, 2>(), of_64 = with_halves<64, 2>();
  if (!has_copy_engine() || rows > kRingRows) return {};
  if (rows <= 16) return rows <= 8 ? of_8 : of_16;
  return rows <= 32 ? of_32 : of_64;
}

}  // namespace lockstep::kernels::cuda
