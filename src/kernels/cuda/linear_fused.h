// Matmuls of few rows with what comes before or after them inside, on compute capability 9.0. Same bits as the ops one
// after the other. Each returns false where it does not suit: nothing is done then.
#pragma once

#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

// linear_row.cu: one row. `norm_weight`: the row is normed first (rmsnorm.cu). `swiglu`: w is gates, then as many ups,
// y is the activation; no residual.
struct RowMatmul {
  Matmul matmul;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  bool swiglu = false;
};
bool row_matmul(const RowMatmul& matmul, int multiprocessors, cudaStream_t stream);

// linear_ring_swiglu.cu: up to kRingRows rows, as RowMatmul::swiglu; with an adapter, whose matmuls are expanded, or
// nullptr.
bool ring_swiglu(const Matmul& matmul, const LoraShrinks* adapter, int multiprocessors, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
