// A product of few rows as one launch with what stands before and after it: normalization, bias, residual, adapter,
// SwiGLU. Compute capability 9.0.
#pragma once

#include "kernels/cuda/fused_linear_hopper.cuh"
#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

inline constexpr int64_t kStreamTokens = 64;  // most rows
inline constexpr int kStreamPairs = 4, kStreamSlots = 64;

// An adapter pair. Its columns of h have slots: the ranks, padded with zeros to a multiple of 16.
struct StreamPair {
  const bf16 *a = nullptr, *b = nullptr;  // [in, rank], [rank, columns]
  int rank = 0, slots = 0, first_slot = 0;
  int begin = 0, columns = 0;  // of the product
  float scale = 1;
};

struct StreamProduct {
  Product product;  // not transposed
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  bool swiglu = false;  // product.outputs counts gate and up, product.end.y has half as many columns
  StreamPair pair[kStreamPairs];
  int num_pairs = 0;
};

// Whether stream_product takes it: the right GPU, at most 64 rows, aligned, f32 outputs only without extras.
bool streams(const StreamProduct& p);
// false: nothing done.
bool stream_product(const StreamProduct& p, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
