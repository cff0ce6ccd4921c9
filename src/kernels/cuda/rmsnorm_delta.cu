// rmsnorm_forward of a residual stream that still lacks an adapter's part: a pass over it less, and a launch.
//
// A cluster of blocks has 16 rows, each block some strips of them. The sums of a row have the tree of norm_kernel,
// which gives a row kThreads threads, thread i the pieces of 8 columns i, i + kThreads ...: four such threads are the
// lanes of a strip, so a warp's strips are those of one residue of kThreads / 4. Every block gets all sums and adds
// them itself.
#include <cooperative_groups.h>

#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace lockstep::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kWarps = 4;  // of a block, each with one residue

struct Norm {
  const float* weight;  // aligned to 16 bytes
  float* rstd;
  float eps;
  int width;
};

struct Matrix {
  bf16* data;
  int stride;

  explicit Matrix(const Tensor& t) : data(data_of<bf16>(t)), stride(static_cast<int>(t.row_stride)) {}
  __device__ bf16* at(int row, int column) const { return data + int64_t{row} * stride + column; }
};

// The threads' sums of 16 rows, of this and the next tile in turn: who is slow reads one while others write the other.
template <int kThreads>
struct Sums {
  static constexpr int kStride = kThreads + 8;  // rows begin in other banks
  float of[2][kStripRows][kStride];
  float rstd[kStripRows];
};

// Of eight threads that share a row.
template <int kThreads>
__device__ __forceinline__ float row_sum(const float* sums, int thread) {
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp, sums += 32) {
    float sum = __fadd_rn(__fadd_rn(sums[thread], sums[thread + 16]), __fadd_rn(sums[thread + 8], sums[thread + 24]));
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
    total = warp == 0 ? sum : __fadd_rn(total, sum);
  }
  return total;
}

// kSteps: strips of a warp. kGroups: of 16 ranks; 0: `all_groups`.
template <int kThreads, int kSteps, int kGroups>
__global__ void __launch_bounds__(32 * kWarps, 4)
    norm_delta_kernel(const __grid_constant__ OneDelta delta, Matrix y, Matrix x, Norm norm, int all_groups) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kResidues = kThreads / 4, kBlocks = kResidues / kWarps;
  extern __shared__ uint4 shared[];  // [warps][steps][groups][64]
  __shared__ Sums<kThreads> sums;
  const cg::cluster_group cluster = cg::this_cluster();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int groups = kGroups > 0 ? kGroups : all_groups;
  const int residue = warp * kBlocks + static_cast<int>(cluster.block_rank());
  const auto column_of = [&](int step) { return (residue + step * kResidues) * kStripColumns; };
  uint4* const strips = shared + warp * kSteps * groups * 64;
  let_next_begin();
  for (int i = 0; i < kSteps * groups; ++i)
    if (column_of(i / groups) < norm.width)
      store_strip(strips + 64 * i, delta.columns(column_of(i / groups)), i % groups, lane);
  const DeltaColumns pair = delta.columns(0);
  wait_for_previous();
  cluster.sync();  // all blocks are there, and strips

  int turn = 0;
  for (int row0 = static_cast<int>(blockIdx.y) * kStripRows; row0 < delta.rows;
       row0 += static_cast<int>(gridDim.y) * kStripRows, turn ^= 1) {
    const int row = row0 + lane / 4;
    const auto inside = [&](int step) { return column_of(step) + lane % 4 * 8 < norm.width; };
    const auto column = [&](int step) { return inside(step) ? column_of(step) + lane % 4 * 8 : 0; };
    Eight v[2][kSteps];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) v[r][s].vector = load_once(x.at(min(row + 8 * r, delta.rows - 1), column(s)));
    add_to_strips<kSteps, kGroups, true>(v, delta.source, pair, strips, groups, row, delta.rows, lane);
    float squares[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        if (inside(s)) squares[r] = add_squares(squares[r], v[r][s].vector);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Sums<kThreads>& there = *cluster.map_shared_rank(&sums, block);
#pragma unroll
      for (int r = 0; r < 2; ++r) there.of[turn][lane / 4 + 8 * r][4 * residue + lane % 4] = squares[r];
    }
    cluster.sync();
    const int of_row = thread / 8;
    const float rstd = rstd_of(row_sum<kThreads>(sums.of[turn][of_row], thread % 8), norm.width, norm.eps);
    if (thread % 8 == 0) {
      sums.rstd[of_row] = rstd;
      if (norm.rstd && cluster.block_rank() == 0 && row0 + of_row < delta.rows) norm.rstd[row0 + of_row] = rstd;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (!inside(s)) continue;
      float weight[8];
      load8(weight, norm.weight + column(s), 8, true);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= delta.rows) continue;
        *reinterpret_cast<uint4*>(x.at(row + 8 * r, column(s))) = v[r][s].vector;
        float scaled[8];
        normed(scaled, v[r][s].vector, sums.rstd[lane / 4 + 8 * r], weight);
        store8(y.at(row + 8 * r, column(s)), scaled, 8, true);
      }
    }
  }
  cluster.sync();  // nobody writes to a block that has gone
#endif
}

template <int kThreads, int kSteps, int kGroups>
void launch(const OneDelta& delta, const Matrix& y, const Matrix& x, const Norm& norm, int groups, int multiprocessors,
            cudaStream_t stream) {
  constexpr auto kKernel = norm_delta_kernel<kThreads, kSteps, kGroups>;
  constexpr unsigned kBlocks = kThreads / 4 / kWarps;
  const int tiles = (delta.rows + kStripRows - 1) / kStripRows, resident = 4 * multiprocessors / int{kBlocks};
  allow_shared<kKernel>(kMostDeltaShared);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kBlocks, static_cast<unsigned>(std::min(tiles, resident)));
  config.blockDim = 32 * kWarps;
  config.dynamicSmemBytes = size_t{kStripBytes} * kWarps * kSteps * groups;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  cudaLaunchKernelEx(&config, kKernel, delta, y, x, norm, groups);
}

}  // namespace

bool rmsnorm_forward(Tensor y, Tensor rstd, Tensor x, const PendingDelta& delta, ConstTensor weight, float eps,
                     Stream& stream) {
  const int64_t rows = x[0], width = x[1];
  if (!has_sm90() || delta.pairs.size() != 1 || !reads_well(delta) || !rows_aligned(x) || !rows_aligned(y))
    return false;
  if (rows == 0 || width % 8 != 0 || width > 128 * 8 * kNormPieces ||
      reinterpret_cast<uintptr_t>(weight.data) % 16 != 0)
    return false;
  if (delta.pairs[0].out_begin != 0 || delta.pairs[0].b[1] != width) return false;
  const int groups = groups_of(delta);
  const OneDelta source{DeltaSource(delta.h), site_of(delta.pairs), static_cast<int>(rows), 0};
  const Norm norm{.weight = data_of<float>(weight),
                  .rstd = rstd.empty() ? nullptr : data_of<float>(rstd),
                  .eps = eps,
                  .width = static_cast<int>(width)};
  const bool narrow = width <= 32 * 8 * kNormPieces;
  const int64_t threads_columns = (narrow ? 32 : 128) * 8;
  const int64_t steps = std::max<int64_t>(2, (width + threads_columns - 1) / threads_columns);
  if (size_t{kStripBytes} * kWarps * static_cast<size_t>(steps * groups) > kMostDeltaShared) return false;
  const auto start = [&](auto threads, auto step) {
    (groups == 1 ? launch<threads.value, step.value, 1>
                 : launch<threads.value, step.value, 0>)(source, Matrix(y), Matrix(x), norm, groups,
                                                         library_of(stream).multiprocessors, stream_of(stream));
  };
  const auto with_steps = [&](auto threads) {
    if (steps == 2) return start(threads, std::integral_constant<int, 2>());
    if (steps == 3) return start(threads, std::integral_constant<int, 3>());
    start(threads, std::integral_constant<int, 4>());
  };
  narrow ? with_steps(std::integral_constant<int, 32>()) : with_steps(std::integral_constant<int, 128>());
  check_launch("rmsnorm_forward", {y, x});
  return true;
}

}  // namespace lockstep::kernels::cuda
