// linear_tiles.cu: matmuls of many rows whose launch also adds the adapter's h B.
#pragma once

#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

// y = x W^T + residual, rounded, then + scale h B, rounded again. Of the pairs only b, rank, columns and scale are
// read.
//   sum    lora_shrink_backward, w is transposed: all pairs add to all columns without a scale, as one sum
//   act    not empty: y is gates and ups, and only swiglu_forward(y) is stored, here
struct TileLinear {
  Matmul matmul;
  ConstTensor h = {};
  std::span<const LoraPair> pairs = {};
  bool sum = false;
  Tensor act = {};
};
bool tiles_take(const TileLinear& call);
void run_tiles(const TileLinear& call, cudaStream_t stream);
// The same without an adapter, for a matmul that tiles_take.
const SmallKernel& tiles_kernel();

}  // namespace lockstep::kernels::cuda
