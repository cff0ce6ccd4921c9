// Our own matrix products: any shape, any M; made for few rows, where the weight is read once at the speed of memory.
#pragma once

#include <span>

#include "kernels/cuda/tile.cuh"

namespace lockstep::kernels::cuda {

// What becomes of an accumulator: y = (acc + bias) + residual in f32, rounded once. A fused activation would be a
// second member of this kind, chosen by the kernel's template.
struct ProductEnd {
  void* y = nullptr;
  int64_t y_stride = 0;
  bool y_f32 = false;
  const float* bias = nullptr;
  const void* residual = nullptr;  // of y's type
  int64_t residual_stride = 0;
};

__device__ __forceinline__ void store_product(const ProductEnd& end, int64_t m, int64_t n, float value) {
  if (end.bias) value += end.bias[n];
  if (end.y_f32) {
    if (end.residual) value += static_cast<const float*>(end.residual)[m * end.residual_stride + n];
    static_cast<float*>(end.y)[m * end.y_stride + n] = value;
  } else {
    if (end.residual) value += __bfloat162float(static_cast<const bf16*>(end.residual)[m * end.residual_stride + n]);
    static_cast<bf16*>(end.y)[m * end.y_stride + n] = __float2bfloat16_rn(value);
  }
}

// y[M, N] = x[M, K] w^T: w is [N, K], or [K, N] when transposed (the backward product with the same weight).
// A prologue (x normalised on load) would take the place of the copies of `x`.
struct Product {
  Operand x, w;
  bool transposed = false;
  int64_t outputs = 0;
  ProductEnd end;
};

// A tile shape: one block computes `tokens` x `rows` outputs.
struct SmallKernel {
  int tokens = 0, rows = 0;
  size_t shared_bytes = 0;
  void (*launch)(const Product&, cudaStream_t) = nullptr;
};

// The kernels for plain weights, and the one for any product at all; all give the same bits.
std::span<const SmallKernel> small_kernels();
const SmallKernel& any_kernel(bool transposed);
// The one to take for M rows when nothing has been measured.
const SmallKernel& likely_kernel(const Product& product, size_t shared_limit, int multiprocessors);

}  // namespace lockstep::kernels::cuda
