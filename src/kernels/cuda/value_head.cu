#include "kernels/cuda/common.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kWarp = 32, kRowsPerBlock = 4, kColumns = 128;

// A warp per row: lane l sums columns 8 l .. 8 l + 7, then those 256 further on, in order.
__global__ void __launch_bounds__(kWarp* kRowsPerBlock)
    value_kernel(float* v, Matrix x, const float* weight, const float* bias, int64_t rows, int width,
                 bool weight_aligned) {
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp;
  if (row >= rows) return;
  float sum = 0;
  for (int column = 8 * (threadIdx.x % kWarp); column < width; column += 8 * kWarp) {
    float values[8], factors[8];
    load8(values, x.at(row, column), width - column, x.aligned);
    load8(factors, weight + column, width - column, weight_aligned);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(values[i], factors[i], sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) v[row] = __fadd_rn(sum, *bias);
}

__global__ void __launch_bounds__(kRowThreads) value_backward_kernel(Matrix dx, const float* dv, const float* weight,
                                                                     int64_t rows, int width, bool weight_aligned) {
  const int column = 8 * (blockIdx.x * kRowThreads + threadIdx.x), left = width - column;
  if (left <= 0) return;
  float factors[8], values[8];
  load8(factors, weight + column, left, weight_aligned);
  for (int64_t n = blockIdx.y; n < rows; n += gridDim.y) {
    const float factor = dv[n];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __fmul_rn(factors[i], factor);
    store8(dx.at(n, column), values, left, dx.aligned);
  }
}

// A thread per column walks the rows in order; one more sums the bias.
__global__ void __launch_bounds__(kColumns)
    value_gradient_kernel(float* d_weight, float* d_bias, const float* dv, Matrix x, int64_t rows, int width) {
  const int column = blockIdx.x * kColumns + threadIdx.x;
  if (column > width) return;
  float* const to = column < width ? d_weight + column : d_bias;
  float sum = *to;
  for (int64_t n = 0; n < rows; ++n)
    sum = column < width ? __fmaf_rn(__bfloat162float(*x.at(n, column)), dv[n], sum) : __fadd_rn(sum, dv[n]);
  *to = sum;
}

bool is_aligned(const ConstTensor& weight) {
  return reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
}

}  // namespace

void value_head_forward(Tensor v, ConstTensor x, ConstTensor weight, ConstTensor bias, Stream& stream) {
  const int64_t rows = x.shape[0], width = x.shape[1];
  if (rows == 0) return;
  value_kernel<<<static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock), kWarp * kRowsPerBlock, 0,
                 stream_of(stream)>>>(data_of<float>(v), Matrix(x), data_of<float>(weight), data_of<float>(bias), rows,
                                      static_cast<int>(width), is_aligned(weight));
  check_launch("value_head_forward", {v, x});
}

void value_head_backward(Tensor dx, ConstTensor dv, ConstTensor weight, Stream& stream) {
  const int64_t rows = dx.shape[0], width = dx.shape[1];
  if (rows == 0) return;
  value_backward_kernel<<<row_grid((width + 7) / 8, rows), kRowThreads, 0, stream_of(stream)>>>(
      Matrix(dx), data_of<float>(dv), data_of<float>(weight), rows, static_cast<int>(width), is_aligned(weight));
  check_launch("value_head_backward", {dx, dv});
}

void value_head_gradient(Tensor d_weight, Tensor d_bias, ConstTensor dv, ConstTensor x, Stream& stream) {
  const int64_t rows = x.shape[0], width = x.shape[1];
  if (rows == 0) return;
  value_gradient_kernel<<<static_cast<unsigned>((width + kColumns) / kColumns), kColumns, 0, stream_of(stream)>>>(
      data_of<float>(d_weight), data_of<float>(d_bias), data_of<float>(dv), Matrix(x), rows, static_cast<int>(width));
  check_launch("value_head_gradient", {d_weight, x});
}

}  // namespace lockstep::kernels::cuda
