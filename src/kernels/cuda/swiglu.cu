#include "kernels/cuda/common.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_io.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace lockstep::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kRowThreads) swiglu_kernel(bf16* y, int64_t y_stride, const bf16* gate_up,
                                                             int64_t stride, int64_t rows, int width, bool aligned) {
  const int column = 8 * (blockIdx.x * kRowThreads + threadIdx.x), left = width - column;
  begin_early();
  if (left <= 0) return;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    const bf16* from = gate_up + t * stride + column;
    float gate[8], up[8];
    load8(gate, from, left, aligned);
    load8(up, from + width, left, aligned);
#pragma unroll
    for (int i = 0; i < 8; ++i) up[i] = swiglu(gate[i], up[i]);
    store8(y + t * y_stride + column, up, left, aligned);
  }
}

__global__ void __launch_bounds__(kRowThreads)
    swiglu_grad_kernel(bf16* d_gate_up, int64_t d_stride, const bf16* dy, int64_t dy_stride, const bf16* gate_up,
                       int64_t stride, int64_t rows, int width, bool aligned) {
  const int column = 8 * (blockIdx.x * kRowThreads + threadIdx.x), left = width - column;
  begin_early();
  if (left <= 0) return;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    const bf16* from = gate_up + t * stride + column;
    float gate[8], up[8], grad[8];
    load8(gate, from, left, aligned);
    load8(up, from + width, left, aligned);
    load8(grad, dy + t * dy_stride + column, left, aligned);
#pragma unroll
    for (int i = 0; i < 8; ++i) swiglu_gradient(gate[i], up[i], grad[i]);
    bf16* to = d_gate_up + t * d_stride + column;
    store8(to, gate, left, aligned);
    store8(to + width, up, left, aligned);
  }
}

}  // namespace

void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream) {
  const int64_t rows = y.shape[0], width = y.shape[1];
  if (rows == 0 || width == 0) return;
  const bool aligned = rows_aligned(y) && rows_aligned(gate_up) && width % 8 == 0;
  launch_early(swiglu_kernel, row_grid((width + 7) / 8, rows), kRowThreads, 0, stream_of(stream), data_of<bf16>(y),
               y.row_stride, data_of<bf16>(gate_up), gate_up.row_stride, rows, static_cast<int>(width), aligned);
  check_launch("swiglu_forward", {y, gate_up});
}

void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream) {
  const int64_t rows = dy.shape[0], width = dy.shape[1];
  if (rows == 0 || width == 0) return;
  const bool aligned = rows_aligned(d_gate_up) && rows_aligned(dy) && rows_aligned(gate_up) && width % 8 == 0;
  launch_early(swiglu_grad_kernel, row_grid((width + 7) / 8, rows), kRowThreads, 0, stream_of(stream),
               data_of<bf16>(d_gate_up), d_gate_up.row_stride, data_of<bf16>(dy), dy.row_stride, data_of<bf16>(gate_up),
               gate_up.row_stride, rows, static_cast<int>(width), aligned);
  check_launch("swiglu_backward", {d_gate_up, dy, gate_up});
}

}  // namespace lockstep::kernels::cuda
