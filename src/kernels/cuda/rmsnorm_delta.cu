// rmsnorm_forward of rows that still lack an adapter's part: of few rows one launch instead of two. A block has four
// rows; its warps have strips of columns while the adapter's part is added, and rows while these are normed.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kRows = 4;
constexpr int64_t kMostRows = 256;

struct Norm {
  const float* weight;
  int rows, width;
  float eps;
  bool weight_aligned;
};

// Strips of the row that a warp has.
__host__ __device__ inline int warp_strips(int width) {
  return (width / kStripColumns + kWarps - 1) / kWarps;
}

// kRowThreads as in rmsnorm.cu, kGroups as in LaneInput. Rows begin at 16 bytes, the width is one of whole strips.
template <int kRowThreads, int kGroups>
__global__ void __launch_bounds__(kThreads)
    norm_delta_kernel(const __grid_constant__ OneDelta source, Matrix y, Matrix x, Norm norm, int all_groups) {
  extern __shared__ uint4 shared[];  // the block's rows, then B: [warps][strips of a warp][groups][64]
  __shared__ float sums[kRows][kRowThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int groups = kGroups > 0 ? kGroups : all_groups, strips = norm.width / kStripColumns;
  const int row_pieces = norm.width / 8, row0 = static_cast<int>(blockIdx.x) * kRows;
  uint4* const b = shared + kRows * row_pieces + warp * warp_strips(norm.width) * groups * 64;
  let_next_begin();
  for (int strip = warp, i = 0; strip < strips; strip += kWarps, i += groups) {
    const DeltaColumns columns = source.columns(strip * kStripColumns);
    for (int group = 0; group < groups; ++group) store_strip(b + 64 * (i + group), columns, group, lane);
  }
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads;
  float weight[kNormPieces][8];
#pragma unroll
  for (int j = 0; j < kNormPieces; ++j) {
    const int column = 8 * (thread + j * kRowThreads);
    load8(weight[j], norm.weight + column, norm.width - column, norm.weight_aligned);
  }
  wait_for_previous();

  for (int i = static_cast<int>(threadIdx.x); i < kRows * row_pieces; i += kThreads) {
    const int row = min(row0 + i / row_pieces, norm.rows - 1);
    copy_async_16(shared + i, x.at(row, i % row_pieces * 8));
  }
  copy_commit();
  // Of the tensor core's 16 rows four are the block's.
  const int mine = min(lane / 4, kRows - 1), row = min(row0 + mine, norm.rows - 1), rows[2] = {row, row};
  const bool stores = lane / 4 < kRows && row0 + mine < norm.rows;
  const DeltaColumns pair = source.columns(0);
  const LaneInput<kGroups, OneDelta::kPaired> input(source.source, pair, lane);
  uint32_t h[kGroups > 0 ? kGroups : 1][4];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) input.load(h[group], group, rows);
  copy_wait<0>();
  __syncthreads();
  for (int strip = warp, i = 0; strip < strips; strip += kWarps, i += groups) {
    HalfStrip sum[2];
    const auto chain = [&](const uint32_t(&of_group)[4], int group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[half].chain(of_group, b + 64 * (i + group), half, lane);
    };
    if constexpr (kGroups > 0) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) chain(h[group], group);
    } else {
      for (int group = 0; group < groups; ++group) {
        input.load(h[0], group, rows);
        chain(h[0], group);
      }
    }
    uint4* const piece = shared + mine * row_pieces + strip * (kStripColumns / 8) + lane % 4;
    Eight eight{.vector = *piece};
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half].add_to(eight.word[half], pair, 0);
    __syncwarp();
    if (lane / 4 < kRows) *piece = eight.vector;
    if (stores) *reinterpret_cast<uint4*>(x.at(row, strip * kStripColumns + lane % 4 * 8)) = eight.vector;
  }
  __syncthreads();

  constexpr int kAtOnce = kThreads / kRowThreads;
  for (int r = static_cast<int>(threadIdx.x) / kRowThreads; r < kRows; r += kAtOnce) {
    uint4 input[kNormPieces];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      const int piece = thread + j * kRowThreads;
      input[j] = piece < row_pieces ? shared[r * row_pieces + piece] : uint4{};
      squares = add_squares(squares, input[j]);
    }
    const float sum = block_sum<kRowThreads / 32>(squares, sums[r], thread / 32);
    const float rstd = rstd_of(sum, norm.width, norm.eps);
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      const int column = 8 * (thread + j * kRowThreads), left = norm.width - column;
      float v[8];
      normed(v, input[j], rstd, weight[j]);
      if (row0 + r < norm.rows) store8(y.at(row0 + r, column), v, left, true);
    }
  }
}

// launch(threads of a row as a constant)
template <class Launch>
void for_width(int64_t width, const Launch& launch) {
  if (width <= 32 * 8 * kNormPieces) return launch(std::integral_constant<int, 32>());
  if (width <= 128 * 8 * kNormPieces) return launch(std::integral_constant<int, 128>());
  launch(std::integral_constant<int, 512>());
}

}  // namespace

bool rmsnorm_forward(Tensor y, Tensor x, const PendingDelta& delta, ConstTensor weight, float eps, Stream& stream) {
  const int64_t rows = x.shape[0], width = x.shape[1];
  if (delta.pairs.size() != 1 || delta.pairs[0].b[1] != width || rows == 0 || rows > kMostRows ||
      width % kStripColumns != 0 || width > kWidestNorm || !rows_aligned(x) || !rows_aligned(y) || !reads_well(delta))
    return false;
  const DeltaShape shape = delta_shape(delta, rows, width / kStripColumns, 1, 0, library_of(stream).multiprocessors);
  const size_t b_bytes = size_t{kStripBytes} * kWarps * warp_strips(static_cast<int>(width)) * shape.groups;
  const size_t bytes = static_cast<size_t>(kRows * width) * sizeof(bf16) + b_bytes;
  if (bytes > kMostDeltaShared) return false;
  const OneDelta source{DeltaSource(delta.h), site_of(delta.pairs), static_cast<int>(rows), kRows};
  const Norm norm{.weight = data_of<float>(weight),
                  .rows = static_cast<int>(rows),
                  .width = static_cast<int>(width),
                  .eps = eps,
                  .weight_aligned = reinterpret_cast<uintptr_t>(weight.data) % 16 == 0};
  for_width(width, [&](auto threads) {
    with_groups<OneDelta>(shape, [&](auto groups) {
      constexpr auto kKernel = norm_delta_kernel<threads.value, groups.value>;
      allow_shared<kKernel>(kMostDeltaShared);
      launch_early(kKernel, static_cast<unsigned>((rows + kRows - 1) / kRows), kThreads, bytes, stream_of(stream),
                   source, Matrix(y), Matrix(x), norm, shape.groups);
    });
  });
  check_launch("rmsnorm_forward", {y, x});
  return true;
}

}  // namespace lockstep::kernels::cuda
