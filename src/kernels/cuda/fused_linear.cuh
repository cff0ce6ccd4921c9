// A product of few rows as one launch with what stands before and after it: normalization, bias, residual, adapter,
// SwiGLU. Compute capability 9.0.
#pragma once

#include "kernels/cuda/fused_linear_hopper.cuh"
#include "kernels/cuda/linear_small.cuh"

namespace lockstep::kernels::cuda {

// Whether kernels for compute capability 9.0 run here.
bool has_copy_engine();
// Boxes of `box_cols` (64 or 16) columns for the copy engine, which exchanges 16-byte chunks by row so that fragments
// load without conflicts: chunk c of row r lies at c ^ r % 8 (64 columns) or c ^ r / 4 % 2 (16). DeviceError.
CUtensorMap box_map(const Operand& matrix, int box_cols, int box_rows);

inline constexpr size_t kMostShared = 227 << 10;  // of a block, compute capability 9.0

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
