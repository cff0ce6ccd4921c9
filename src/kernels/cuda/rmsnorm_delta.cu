// rmsnorm_forward of many rows of a residual stream that still lacks an adapter's part: one pass over it instead of
// two. A block holds 16 whole rows in registers and, if there is room, fetches the next 16 while it works on these.
//
// The sums have the tree of norm_kernel (rmsnorm.cuh), whose thread i has the pieces of 8 columns i, i + kThreads ...:
// four such threads are the lanes of a strip, and strips that are kThreads / 4 apart are of the same threads.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr size_t kMostShared = size_t{192} << 10;

struct Matrix {
  bf16* data;
  int stride;

  explicit Matrix(const Tensor& t) : data(data_of<bf16>(t)), stride(static_cast<int>(t.row_stride)) {}
};

struct Norm {
  const float* weight;  // at 16 bytes
  float* rstd;
  float eps;
  int width;
};

// In the order of the program: all of a tile's are asked for before any is used.
__device__ __forceinline__ uint4 load_now(const bf16* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// kThreads: of a row of norm_kernel. Warp w has the strips w, w + kWarps ...: kSteps of them.
template <int kThreads, int kSteps, int kGroups>
__global__ void __launch_bounds__(kThreads == 32 ? 256 : 512, kThreads == 32 ? 2 : 1)
    norm_delta_kernel(const __grid_constant__ OneDelta delta, Matrix y, Matrix x, const __grid_constant__ Norm norm) {
  constexpr int kWarps = kThreads == 32 ? 8 : 16, kResidues = kThreads / 4, kTurns = kResidues / kWarps;
  extern __shared__ uint4 shared[];  // [warps][steps][groups][64]
  __shared__ float sums[kStripRows][kThreads + 8], rstds[kStripRows];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  uint4* const strips = shared + warp * kSteps * kGroups * 64;
  const auto column_of = [&](int step) { return (warp + step * kWarps) * kStripColumns; };
  let_next_begin();
#pragma unroll 1
  for (int i = 0; i < kSteps * kGroups; ++i)
    if (column_of(i / kGroups) < norm.width)
      store_strip(strips + 64 * i, delta.columns(column_of(i / kGroups)), i % kGroups, lane);
  const DeltaColumns pair = delta.columns(0);
  const LaneInput<kGroups, true> input(delta.source, pair, lane);
  const LaneRows<bf16> x_rows(x.data, x.stride, column_of(0) + lane % 4 * 8);
  const LaneRows<bf16> y_rows(y.data, y.stride, column_of(0) + lane % 4 * 8);
  const auto inside = [&](int step) { return column_of(step) + lane % 4 * 8 < norm.width; };
  __syncwarp();
  wait_for_previous();

  const int last = delta.rows - 1, step_rows = static_cast<int>(gridDim.x) * kStripRows;
  constexpr bool kAhead = kSteps <= 6;
  Eight v[2][kSteps], next[2][kSteps];
  const auto load = [&](int row0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bf16* const from = x_rows.at(min(row0 + lane / 4 + 8 * r, last));
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        next[r][s].vector = inside(s) ? load_now(from + s * kWarps * kStripColumns) : uint4{};
    }
  };
  int row0 = static_cast<int>(blockIdx.x) * kStripRows;
  if (kAhead && row0 <= last) load(row0);
  for (; row0 <= last; row0 += step_rows) {
    const int row[2] = {min(row0 + lane / 4, last), min(row0 + lane / 4 + 8, last)};
    if (!kAhead) load(row0);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) v[r][s] = next[r][s];
    add_to_strips<kSteps>(v, input, pair, strips, kGroups, row, lane);
    if (kAhead && row0 + step_rows <= last) load(row0 + step_rows);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        float squares = 0;
#pragma unroll
        for (int s = turn; s < kSteps; s += kTurns)
          if (inside(s)) squares = add_squares(squares, v[r][s].vector);
        sums[lane / 4 + 8 * r][4 * (warp + turn * kWarps) + lane % 4] = squares;
      }
    __syncthreads();
#pragma unroll
    for (int i = warp; i < kStripRows; i += kWarps) {
      float sum = warp_sum(sums[i][lane]);
#pragma unroll
      for (int part = 1; part < kThreads / 32; ++part) sum = __fadd_rn(sum, warp_sum(sums[i][32 * part + lane]));
      const float rstd = rstd_of(sum, norm.width, norm.eps);
      if (lane == 0) rstds[i] = rstd;
      if (lane == 0 && norm.rstd && row0 + i <= last) norm.rstd[row0 + i] = rstd;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (!inside(s)) continue;
      float weight[8];
      load8(weight, norm.weight + column_of(s) + lane % 4 * 8, 8, true);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (row0 + lane / 4 + 8 * r > last) continue;
        *reinterpret_cast<uint4*>(x_rows.at(row[r]) + s * kWarps * kStripColumns) = v[r][s].vector;
        float scaled[8];
        normed(scaled, v[r][s].vector, rstds[lane / 4 + 8 * r], weight);
        store8(y_rows.at(row[r]) + s * kWarps * kStripColumns, scaled, 8, true);
      }
    }
  }
}

}  // namespace

bool rmsnorm_forward(Tensor y, Tensor rstd, Tensor x, const PendingDelta& delta, ConstTensor weight, float eps,
                     Stream& stream) {
  constexpr int64_t kManyRows = 512;  // fewer fill too few blocks
  const int64_t rows = x[0], width = x[1];
  if (rows < kManyRows || delta.pairs.size() != 1 || !reads_well(delta) || !rows_aligned(x) || !rows_aligned(y))
    return false;
  const int64_t rank = delta.pairs[0].rank();
  if (width % 8 != 0 || width > 128 * 8 * kNormPieces || reinterpret_cast<uintptr_t>(weight.data) % 16 != 0 ||
      delta.pairs[0].out_begin != 0 || delta.pairs[0].b[1] != width || (rank != 16 && rank != 32))
    return false;
  const int multiprocessors = library_of(stream).multiprocessors;
  const auto start = [&](auto threads, auto steps, auto groups) {
    constexpr auto kKernel = norm_delta_kernel<threads.value, steps.value, groups.value>;
    constexpr unsigned kWarps = threads.value == 32 ? 8 : 16;
    constexpr size_t kShared = size_t{kStripBytes} * kWarps * steps.value * groups.value;
    if constexpr (kShared <= kMostShared) {
      allow_shared<kKernel>(kShared);
      const int64_t tiles = (rows + kStripRows - 1) / kStripRows;
      const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tiles, (kWarps == 8 ? 2 : 1) * multiprocessors)));
      launch_early(kKernel, grid, 32 * kWarps, kShared, stream_of(stream),
                   OneDelta{DeltaSource(delta.h), site_of(delta.pairs), static_cast<int>(rows), 0}, Matrix(y),
                   Matrix(x),
                   Norm{.weight = data_of<float>(weight),
                        .rstd = rstd.empty() ? nullptr : data_of<float>(rstd),
                        .eps = eps,
                        .width = static_cast<int>(width)});
      check_launch("rmsnorm_forward", {y, x});
      return true;
    }
    return false;
  };
  const auto with_groups = [&](auto threads, auto steps) {
    return rank == 16 ? start(threads, steps, std::integral_constant<int, 1>())
                      : start(threads, steps, std::integral_constant<int, 2>());
  };
  if (width <= 32 * 8 * kNormPieces)
    return with_groups(std::integral_constant<int, 32>(), std::integral_constant<int, 4>());
  const auto wide = [&](auto steps) { return with_groups(std::integral_constant<int, 128>(), steps); };
  if (width <= 2048) return wide(std::integral_constant<int, 4>());
  if (width <= 2560) return wide(std::integral_constant<int, 5>());
  if (width <= 3072) return wide(std::integral_constant<int, 6>());
  return wide(std::integral_constant<int, 8>());
}

}  // namespace lockstep::kernels::cuda
