// Matmuls of few rows fused with the op before or after them, on compute capability 9.0. The bits are those of separate
// ops. Each function returns false, and has done nothing, if it does not support the arguments.
#pragma once

#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

// linear_row.cu: one row, its norm and a matmul without residual. `swiglu`: w is gates, then as many ups; y is the
// activation. `claims`: the counters of claimed_indices.cuh; launches that share them are on one queue.
struct RowMatmul {
  Matmul matmul;
  RowNorm norm;
  bool swiglu = false;
  uint32_t* claims = nullptr;
};
bool row_matmul(const RowMatmul& matmul, int multiprocessors, cudaStream_t stream);

// linear_ring_swiglu.cu: up to kRingTileRows rows, or one row with a norm, with RowMatmul::swiglu; with an adapter
// whose h B it can add, or nullptr.
bool ring_swiglu(const Matmul& matmul, const RowNorm& norm, const LoraShrinks* adapter, int multiprocessors,
                 cudaStream_t stream);

// linear_ring_own_h.cu: up to 16 rows, one pair of 8 or 16 ranks of one adapter, which this launch adds, and so few
// outputs that the launch takes at most half of the multiprocessors.
bool ring_own_h(const Matmul& matmul, const LoraShrinks& adapter, int multiprocessors, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
