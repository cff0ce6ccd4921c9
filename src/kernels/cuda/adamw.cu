#include <algorithm>
#include <cmath>
#include <vector>

#include "core/transfer.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

bool at_16(const ConstTensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

struct State {
  float* w_new;
  bf16* working;
  const float* w;
  float *m, *v;
  const float* grad;
  int64_t count;
  bool aligned;
};

// The operations of the CPU's adamw_range, each with its own rounding: the same bits.
__device__ __forceinline__ float adamw_element(float w, float& m, float& v, float grad, const cpu::AdamWScalars& s) {
  const float g = __fmul_rn(grad, s.grad_scale);
  m = __fmaf_rn(s.one_minus_beta1, __fsub_rn(g, m), m);
  v = __fadd_rn(__fmul_rn(v, s.beta2), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
  const float spread = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), s.bias2_sqrt), s.eps);
  return __fadd_rn(__fmul_rn(w, s.decay), __fdiv_rn(__fmul_rn(s.minus_step_size, m), spread));
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(State state, cpu::AdamWScalars scalars) {
  const int64_t begin = 8 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  if (begin >= state.count) return;
  const int left = static_cast<int>(min(state.count - begin, int64_t{8}));
  float w[8], m[8], v[8], grad[8];
  load8(w, state.w + begin, left, state.aligned);
  load8(m, state.m + begin, left, state.aligned);
  load8(v, state.v + begin, left, state.aligned);
  load8(grad, state.grad + begin, left, state.aligned);
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = adamw_element(w[i], m[i], v[i], grad[i], scalars);
  store8(state.m + begin, m, left, state.aligned);
  store8(state.v + begin, v, left, state.aligned);
  store8(state.w_new + begin, w, left, state.aligned);
  if (state.working) store8(state.working + begin, w, left, state.aligned);
}

__global__ void __launch_bounds__(kThreads) round_kernel(bf16* working, const float* w, int64_t count, bool aligned) {
  const int64_t begin = 8 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  if (begin >= count) return;
  const int left = static_cast<int>(min(count - begin, int64_t{8}));
  float v[8];
  load8(v, w + begin, left, aligned);
  store8(working + begin, v, left, aligned);
}

constexpr int kMatrices = 64, kSide = 32;  // matrices per launch; side of a square transposed in shared memory
struct Matrices {
  FlatMatrix of[kMatrices];
};

__global__ void __launch_bounds__(kThreads)
    transpose_kernel(bf16* working, const float* w, const __grid_constant__ Matrices matrices) {
  __shared__ float square[kSide][kSide + 1];
  const FlatMatrix& m = matrices.of[blockIdx.y];
  const int64_t across = (m.cols + kSide - 1) / kSide, squares = (m.rows + kSide - 1) / kSide * across;
  const int column = threadIdx.x % kSide;
  for (int64_t i = blockIdx.x; i < squares; i += gridDim.x) {
    const int64_t row0 = i / across * kSide, col0 = i % across * kSide;
    for (int r = threadIdx.x / kSide; r < kSide; r += kThreads / kSide)
      if (row0 + r < m.rows && col0 + column < m.cols)
        square[r][column] = w[m.offset + (row0 + r) * m.cols + col0 + column];
    __syncthreads();
    for (int c = threadIdx.x / kSide; c < kSide; c += kThreads / kSide)
      if (row0 + column < m.rows && col0 + c < m.cols)
        working[m.offset + (col0 + c) * m.rows + row0 + column] = __float2bfloat16_rn(square[column][c]);
    __syncthreads();
  }
}

constexpr int kSquares = 4096, kLanes = 16;

// Sixteen threads reduce a block of 4096 elements: thread i adds elements i, i + 16, ..., then the sums are combined 8
// + 8, 4 + 4, 2 + 2, 1 + 1, as on the CPU.
__global__ void __launch_bounds__(kThreads) squares_kernel(double* partial, const float* x, int64_t count) {
  const int64_t block = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  const int64_t begin = block * kSquares, end = min(begin + kSquares, count);
  double sum = 0;
#pragma unroll 16
  for (int64_t i = begin + threadIdx.x % kLanes; i < end; i += kLanes) {
    const double value = x[i];
    sum = fma(value, value, sum);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (begin < count && threadIdx.x % kLanes == 0) partial[block] = sum;
}

cpu::AdamWScalars scalars_of(const AdamWStep& options) {
  const double steps = static_cast<double>(options.step);
  const double bias1 = 1 - std::pow(options.beta1, steps), bias2 = 1 - std::pow(options.beta2, steps);
  return {.decay = static_cast<float>(1 - options.lr * options.weight_decay),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .minus_step_size = static_cast<float>(-(options.lr / bias1)),
          .bias2_sqrt = static_cast<float>(std::sqrt(bias2)),
          .eps = static_cast<float>(options.eps),
          .grad_scale = options.grad_scale};
}

}  // namespace

void adamw(Tensor w_new, Tensor working, ConstTensor w, Tensor m, Tensor v, ConstTensor grad, const AdamWStep& options,
           Stream& stream) {
  const int64_t count = w.shape[0];
  if (count == 0) return;
  const State state{.w_new = data_of<float>(w_new),
                    .working = working.empty() ? nullptr : data_of<bf16>(working),
                    .w = data_of<float>(w),
                    .m = data_of<float>(m),
                    .v = data_of<float>(v),
                    .grad = data_of<float>(grad),
                    .count = count,
                    .aligned = at_16(w_new) && at_16(working) && at_16(w) && at_16(m) && at_16(v) && at_16(grad)};
  adamw_kernel<<<blocks_for((count + 7) / 8), kThreads, 0, stream_of(stream)>>>(state, scalars_of(options));
  check_launch("adamw", {w});
}

void round_to_working(Tensor working, ConstTensor w, Stream& stream) {
  const int64_t count = w.shape[0];
  if (count == 0) return;
  round_kernel<<<blocks_for((count + 7) / 8), kThreads, 0, stream_of(stream)>>>(
      data_of<bf16>(working), data_of<float>(w), count, at_16(working) && at_16(w));
  check_launch("round_to_working", {w});
}

void round_transposed(Tensor working, ConstTensor w, std::span<const FlatMatrix> matrices, Stream& stream) {
  for (size_t first = 0; first < matrices.size(); first += kMatrices) {
    const std::span<const FlatMatrix> some =
        matrices.subspan(first, std::min<size_t>(kMatrices, matrices.size() - first));
    Matrices arguments;
    std::ranges::copy(some, arguments.of);
    constexpr unsigned kBlocks = 32;  // per matrix; a matrix with more squares than that has each block handle several
    transpose_kernel<<<dim3(kBlocks, static_cast<unsigned>(some.size())), kThreads, 0, stream_of(stream)>>>(
        data_of<bf16>(working), data_of<float>(w), arguments);
  }
  check_launch("round_transposed", {w});
}

// The host adds the partial sums in order, as on the CPU: there are few, and the caller waits for the result anyway.
double sum_of_squares(ConstTensor x, Stream& stream) {
  const int64_t count = x.shape[0], blocks = (count + kSquares - 1) / kSquares;
  if (count == 0) return 0;
  std::vector<double> partial(static_cast<size_t>(blocks));
  const size_t bytes = partial.size() * sizeof(double);
  auto* sums = static_cast<double*>(scratch_of(stream, bytes));
  squares_kernel<<<blocks_for(blocks * kLanes), kThreads, 0, stream_of(stream)>>>(sums, data_of<float>(x), count);
  check_launch("sum_of_squares", {x});
  download(partial.data(), sums, bytes, stream);
  double total = 0;
  for (const double sum : partial) total += sum;
  return total;
}

}  // namespace lockstep::kernels::cuda
