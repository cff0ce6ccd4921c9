// linear_tiles.cu: matmuls of many rows whose launch also adds the adapter's h B.
#pragma once

#include "kernels/cuda/linear_small.cuh"
#include "kernels/qk_norm_rope.h"

namespace lockstep::kernels::cuda {

struct ChunkSums;

// What becomes of logits that are not stored (kernels/cuda/softmax_chunk.cuh). A tile's columns are a piece.
struct TileLogprob {
  ChunkSums* pieces = nullptr;       // [rows, pieces_of(outputs)]
  float* target_z = nullptr;         // [rows]: z of the target
  const int32_t* targets = nullptr;  // [rows]; -1: none
  float scale = 1;                   // z = logits * scale
  bool moment = false;               // pieces have moments
};

// y = x W^T + residual, rounded, then + scale h B, rounded again. Of the pairs only b, rank, columns and scale are
// read, with computes_h also a and rank_rows.
//   sum    lora_shrink_backward, w is transposed: all pairs add to all columns without a scale, as one sum
//   computes_h  h = x A of the one pair is computed here, from its a; `h` is not read, and computed_h, if it is not
//               empty, gets it
//   act    not empty: y is gates and ups, and only swiglu_forward(y) is stored, here
//   heads   y is qkv, and only qk_norm_rope_forward(y) is stored, here; or nullptr
//   logprob  with pieces: without adapter and residual; y gets exp(z - the piece's largest), or is nullptr
struct TileLinear {
  Matmul matmul;
  ConstTensor h = {};
  std::span<const LoraPair> pairs = {};
  bool sum = false, computes_h = false;
  Tensor computed_h = {};
  Tensor act = {};
  const QkNormRopeCall* heads = nullptr;
  TileLogprob logprob = {};
};
bool tiles_take(const TileLinear& call);
void run_tiles(const TileLinear& call, cudaStream_t stream);
// The same without an adapter, for a matmul that tiles_take.
const SmallKernel& tiles_kernel();

}  // namespace lockstep::kernels::cuda
