// What the attention backward kernels for Hopper share.
#pragma once

#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_work.cuh"

namespace lockstep::kernels::cuda {

// store_gradient by way of shared memory (store_staged) where the rows allow it.
template <int kDim>
__device__ __forceinline__ void store_gradient_staged(const HeadRows<bf16>& to, const float (&x)[kDim / 8][4],
                                                      bf16* staged, int64_t row, int column, int present, float factor,
                                                      int lane) {
  if (!to.by_16) return store_gradient<kDim>(to, x, row, column, present, kDim, factor, lane);
  store_staged<kDim>(staged, to, row, column, present, lane,
                     [&](int n, int h) { return pack_bf16(x[n][2 * h] * factor, x[n][2 * h + 1] * factor); });
}

}  // namespace lockstep::kernels::cuda
