#include "core/error.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Norm {
  const float* weight;
  float* rstd;
  int64_t rows;
  int width;
  float eps;
  bool weight_aligned;
};

constexpr int block_threads(int row_threads) {
  return row_threads < 128 ? 128 : row_threads;
}

// Eight elements. Those from `count` on (all or none of them when kWhole) read as 0 and are not stored.
template <bool kWhole>
__device__ __forceinline__ uint4 load_piece(const bf16* p, int count, bool aligned) {
  if constexpr (kWhole) return load_all8(p, count > 0);
  return load_bf16x8(p, count, aligned);
}
template <bool kWhole>
__device__ __forceinline__ void load_floats(float (&v)[8], const float* p, int count, bool aligned) {
  if constexpr (kWhole)
    load_all8(v, p, count > 0);
  else
    load8(v, p, count, aligned);
}

// A thread's pieces of the weight.
template <int kThreads, int kPieces, bool kWhole>
__device__ __forceinline__ void load_weight(float (&weight)[kPieces][8], const Norm& norm, int thread) {
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * (thread + j * kThreads);
    load_floats<kWhole>(weight[j], norm.weight + column, norm.width - column, norm.weight_aligned);
  }
}

// kPieces: as many pieces as a thread needs. kWhole: widths and addresses are multiples of eight elements. The kernel
// is then less than half as long, which matters in a decode step, whose kernels share the instruction cache, and its
// loads are all in flight at once.
template <int kThreads, int kPieces, bool kWhole>
__global__ void __launch_bounds__(block_threads(kThreads)) norm_kernel(Matrix y, Matrix x, Norm norm) {
  __shared__ float shared[kThreads / 32];
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kThreads;
  let_next_begin();
  if (row >= norm.rows) return;
  const int thread = threadIdx.x % kThreads;
  uint4 input[kPieces];
  float weight[kPieces][8];
  // the weight never changes, so it is loaded before earlier kernels have ended
  load_weight<kThreads, kPieces, kWhole>(weight, norm, thread);
  wait_for_previous();
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * (thread + j * kThreads);
    input[j] = load_piece<kWhole>(x.at(row, column), norm.width - column, x.aligned);
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) squares = add_squares(squares, input[j]);
  const float rstd = rstd_of(block_sum<kThreads / 32>(squares, shared), norm.width, norm.eps);
  if (norm.rstd && thread == 0) norm.rstd[row] = rstd;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * (thread + j * kThreads);
    float v[8];
    normed(v, input[j], rstd, weight[j]);
    if (!kWhole || column < norm.width)
      store8(y.at(row, column), v, kWhole ? 8 : norm.width - column, kWhole || y.aligned);
  }
}

template <int kThreads, int kPieces, bool kWhole>
__global__ void __launch_bounds__(block_threads(kThreads))
    norm_grad_kernel(Matrix dx, Matrix dy, Matrix x, Norm norm, bool accumulate) {
  __shared__ float shared[kThreads / 32];
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kThreads;
  let_next_begin();
  if (row >= norm.rows) return;
  const int thread = threadIdx.x % kThreads;
  uint4 input[kPieces], grad[kPieces], before[kPieces];
  float weight[kPieces][8];
  load_weight<kThreads, kPieces, kWhole>(weight, norm, thread);
  wait_for_previous();
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * (thread + j * kThreads), left = norm.width - column;
    grad[j] = load_piece<kWhole>(dy.at(row, column), left, dy.aligned);
    input[j] = load_piece<kWhole>(x.at(row, column), left, x.aligned);
    before[j] = load_piece<kWhole>(dx.at(row, column), accumulate ? left : 0, dx.aligned);
  }
  const float rstd = norm.rstd[row];
  float dots = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    float v[8], g[8];
    widen(v, input[j]);
    widen(g, grad[j]);
#pragma unroll
    for (int i = 0; i < 8; ++i) dots = __fmaf_rn(__fmul_rn(g[i], weight[j][i]), v[i], dots);
  }
  const float sum = block_sum<kThreads / 32>(dots, shared);
  const float cube = __fmul_rn(__fmul_rn(rstd, rstd), rstd);
  const float pull = -__fmul_rn(__fdiv_rn(cube, static_cast<float>(norm.width)), sum);
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * (thread + j * kThreads);
    float v[8], g[8], old[8];
    widen(v, input[j]);
    widen(g, grad[j]);
    widen(old, before[j]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float direct = __fmul_rn(rstd, __fmul_rn(g[i], weight[j][i]));
      v[i] = __fadd_rn(old[i], __fmaf_rn(pull, v[i], direct));
    }
    if (!kWhole || column < norm.width)
      store8(dx.at(row, column), v, kWhole ? 8 : norm.width - column, kWhole || dx.aligned);
  }
}

// launch(threads per row and pieces per thread as constants, grid, block)
template <class Launch>
void for_width(const Norm& norm, const char* op, const Launch& launch) {
  const auto start = [&](auto threads) {
    constexpr int kBlock = block_threads(threads.value);
    const int64_t rows_per_block = kBlock / threads.value;
    const auto grid = static_cast<unsigned>((norm.rows + rows_per_block - 1) / rows_per_block);
    if (norm.width <= threads.value * 8 * 3) return launch(threads, std::integral_constant<int, 3>(), grid, kBlock);
    launch(threads, std::integral_constant<int, kNormPieces>(), grid, kBlock);
  };
  if (norm.width <= kWidestWarpNorm) return start(std::integral_constant<int, 32>());
  if (norm.width <= kWidestWarpgroupNorm) return start(std::integral_constant<int, 128>());
  if (norm.width <= kWidestNorm) return start(std::integral_constant<int, 512>());
  throw ShapeError({.what = "rows too wide for a GPU's norm",
                    .where = op,
                    .got = std::to_string(norm.width),
                    .wanted = "at most " + std::to_string(kWidestNorm)});
}

Norm norm_of(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& rstd, float eps, const char* op) {
  if (x.rank != 2)
    throw ShapeError(
        {.what = "a GPU's norm takes whole rows", .where = op, .got = shape_text(x), .wanted = "bf16 [T, D]"});
  return {.weight = data_of<float>(weight),
          .rstd = rstd.empty() ? nullptr : const_cast<float*>(data_of<float>(rstd)),
          .rows = x.shape[0],
          .width = static_cast<int>(x.shape[1]),
          .eps = eps,
          .weight_aligned = reinterpret_cast<uintptr_t>(weight.data) % 16 == 0};
}

}  // namespace

void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream) {
  const Norm norm = norm_of(x, weight, rstd, eps, "rmsnorm_forward");
  if (norm.rows == 0) return;
  for_width(norm, "rmsnorm_forward", [&](auto threads, auto pieces, unsigned grid, int block) {
    const Matrix to(y), from(x);
    const bool whole = to.aligned && from.aligned && norm.weight_aligned && norm.width % 8 == 0;
    launch_early(
        whole ? norm_kernel<threads.value, pieces.value, true> : norm_kernel<threads.value, kNormPieces, false>, grid,
        block, 0, stream_of(stream), to, from, norm);
  });
  check_launch("rmsnorm_forward", {y, x});
}

void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream) {
  const Norm norm = norm_of(x, weight, rstd, 0, "rmsnorm_backward");
  if (norm.rows == 0) return;
  for_width(norm, "rmsnorm_backward", [&](auto threads, auto pieces, unsigned grid, int block) {
    const Matrix to(dx), grad(dy), input(x);
    const bool whole = to.aligned && grad.aligned && input.aligned && norm.weight_aligned && norm.width % 8 == 0;
    launch_early(whole ? norm_grad_kernel<threads.value, pieces.value, true>
                       : norm_grad_kernel<threads.value, kNormPieces, false>,
                 grid, block, 0, stream_of(stream), to, grad, input, norm, accumulate);
  });
  check_launch("rmsnorm_backward", {dx, dy, x});
}

}  // namespace lockstep::kernels::cuda
