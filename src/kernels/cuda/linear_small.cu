#include <algorithm>
#include <array>

#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {
namespace {

// kWarpsM x kWarpsN warps, each 16 kMTiles tokens x 8 kNTiles outputs; a pipeline of kStages stages of kDepth.
template <int kMTiles_, int kNTiles_, int kWarpsM_, int kWarpsN_, int kDepth_, int kStages_>
struct Shape {
  static constexpr int kMTiles = kMTiles_, kNTiles = kNTiles_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kDepth = kDepth_, kStages = kStages_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kTokens = 16 * kMTiles * kWarpsM, kRows = 8 * kNTiles * kWarpsN;
  static constexpr int kXElements = kTokens * tile_stride(kDepth);
  template <bool kTransposed>
  static constexpr int kStageElements = kXElements +
                                        (kTransposed ? kDepth * tile_stride(kRows) : kRows * tile_stride(kDepth));
  template <bool kTransposed>
  static constexpr size_t kSharedBytes = sizeof(bf16) * kStages* kStageElements<kTransposed>;
};

template <class S, bool kTransposed>
__global__ void __launch_bounds__(S::kThreads) matmul_kernel(const __grid_constant__ Matmul p) {
  extern __shared__ __align__(16) bf16 shared[];
  constexpr int kStageElements = S::template kStageElements<kTransposed>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_m = warp / S::kWarpsN * 16 * S::kMTiles, warp_n = warp % S::kWarpsN * 8 * S::kNTiles;
  const int64_t m0 = int64_t{blockIdx.y} * S::kTokens, n0 = int64_t{blockIdx.x} * S::kRows;

  float acc[S::kMTiles][S::kNTiles][4] = {};
  const auto load = [&](int step, int stage) {
    bf16* const x = shared + stage * kStageElements;
    const int64_t k = int64_t{step} * S::kDepth;
    load_tile<S::kTokens, S::kDepth, S::kThreads, false>(x, p.x, m0, k, thread);
    if constexpr (kTransposed)
      load_tile<S::kDepth, S::kRows, S::kThreads, true>(x + S::kXElements, p.w, k, n0, thread);
    else
      load_tile<S::kRows, S::kDepth, S::kThreads, false>(x + S::kXElements, p.w, n0, k, thread);
  };
  const auto compute = [&](int, int stage) {
    const bf16* const x = shared + stage * kStageElements + warp_m * tile_stride(S::kDepth);
    const bf16* const w = shared + stage * kStageElements + S::kXElements;
    if constexpr (kTransposed)
      tile_chain<S::kMTiles, S::kNTiles, S::kDepth, true>(acc, x, tile_stride(S::kDepth), w + warp_n,
                                                          tile_stride(S::kRows), lane);
    else
      tile_chain<S::kMTiles, S::kNTiles, S::kDepth, false>(
          acc, x, tile_stride(S::kDepth), w + warp_n * tile_stride(S::kDepth), tile_stride(S::kDepth), lane);
  };
  pipeline<S::kStages>(static_cast<int>((p.x.cols + S::kDepth - 1) / S::kDepth), load, compute);

  // An accumulator holds four values: rows g and g + 8, columns 2t and 2t + 1.
#pragma unroll
  for (int i = 0; i < S::kMTiles; ++i)
#pragma unroll
    for (int j = 0; j < S::kNTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t m = m0 + warp_m + 16 * i + lane / 4 + e / 2 * 8, n = n0 + warp_n + 8 * j + lane % 4 * 2 + e % 2;
        if (m < p.x.rows && n < p.outputs) store_output(p.end, m, n, acc[i][j][e]);
      }
}

template <class S, bool kTransposed>
void launch(const Matmul& p, cudaStream_t stream) {
  if (p.x.rows == 0 || p.outputs == 0) return;
  constexpr size_t kShared = S::template kSharedBytes<kTransposed>;
  allow_shared<matmul_kernel<S, kTransposed>>(kShared);
  const dim3 grid(static_cast<unsigned>((p.outputs + S::kRows - 1) / S::kRows),
                  static_cast<unsigned>((p.x.rows + S::kTokens - 1) / S::kTokens));
  matmul_kernel<S, kTransposed><<<grid, S::kThreads, kShared, stream>>>(p);
  check_launch("linear");
}

template <class S, bool kTransposed = false>
constexpr SmallKernel kernel_of() {
  return {S::kTokens, S::kRows, S::template kSharedBytes<kTransposed>, launch<S, kTransposed>};
}

using Any = Shape<2, 4, 2, 2, 64, 4>;  // 64 tokens x 64 outputs; 72 KiB, which every GPU since compute 8.0 has

// For what linear_ring.cu does not support: other GPUs, and K that is no multiple of 64. Few outputs per block where N
// is small, so that all multiprocessors have work; the stages keep 24 to 60 KiB of weights in flight per
// multiprocessor.
const std::array kKernels = {
    kernel_of<Shape<1, 1, 1, 1, 128, 10>>(),  // 16 x 8
    kernel_of<Shape<1, 1, 1, 2, 128, 8>>(),   // 16 x 16
    kernel_of<Shape<1, 2, 1, 4, 128, 4>>(),   // 16 x 64
    kernel_of<Shape<1, 2, 2, 2, 128, 6>>(),   // 32 x 32
    kernel_of<Shape<1, 2, 4, 1, 128, 5>>(),   // 64 x 16
    kernel_of<Any>(),                         // 64 x 64
};
const SmallKernel kAnyTransposed = kernel_of<Any, true>();

}  // namespace

std::span<const SmallKernel> small_kernels() {
  return kKernels;
}

const SmallKernel& any_kernel(bool transposed) {
  return transposed ? kAnyTransposed : kKernels.back();
}

const SmallKernel& likely_kernel(const Matmul& matmul, int multiprocessors) {
  if (matmul.transposed) return kAnyTransposed;
  const auto blocks = [&](const SmallKernel& kernel) { return (matmul.outputs + kernel.rows - 1) / kernel.rows; };
  if (matmul.x.rows > 0) {
    const SmallKernel* ring = nullptr;
    for (const SmallKernel& kernel : ring_kernels(matmul, matmul.x.rows))
      if (!ring || 2 * blocks(kernel) >= multiprocessors) ring = &kernel;
    if (ring) return *ring;
  }
  const int64_t tokens = std::min<int64_t>(64, (matmul.x.rows + 15) / 16 * 16);
  const SmallKernel* best = nullptr;
  for (const SmallKernel& kernel : kKernels) {
    if (kernel.tokens < tokens || kernel.shared_bytes > shared_limit()) continue;
    if (best && kernel.tokens > best->tokens) break;
    // The largest number of outputs per block that still gives every multiprocessor a block.
    if (!best || blocks(kernel) >= multiprocessors) best = &kernel;
  }
  return best ? *best : kKernels.back();
}

}  // namespace lockstep::kernels::cuda
