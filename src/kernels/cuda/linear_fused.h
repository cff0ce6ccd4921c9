// Matmuls of few rows fused with the op before or after them, on compute capability 9.0. The bits are those of separate
// ops. Each function returns false, and has done nothing, if it does not support the arguments.
#pragma once

#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

// linear_row.cu: one row. `norm_weight`: the row is normalized first (rmsnorm.cu). `swiglu`: w is gates, then as many
// ups; y is the activation; no residual.
struct RowMatmul {
  Matmul matmul;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  bool swiglu = false;
};
bool row_matmul(const RowMatmul& matmul, int multiprocessors, cudaStream_t stream);

// linear_ring_swiglu.cu: up to kRingTileRows rows, with RowMatmul::swiglu; with an adapter whose h B it can add, or
// nullptr.
bool ring_swiglu(const Matmul& matmul, const LoraShrinks* adapter, int multiprocessors, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
