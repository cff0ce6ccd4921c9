// What attention and the ops around it want of their arguments. Throws ShapeError.
#pragma once

#include "kernels/attention.h"

namespace lockstep::kernels {

void require_shape(const AttentionShape& shape, const char* op);
void require_sequences(std::span<const AttentionSequence> sequences, int64_t rows, const char* op);
// What attention_backward says of sequences that begin alike.
void require_followers(std::span<const AttentionSequence> sequences, const char* op);

// How many of the sequences after `index` begin with blocks of it (attention_backward).
size_t count_followers(std::span<const AttentionSequence> sequences, size_t index);

// What attention on a device takes: any head_dim on a CPU, multiples of 16 up to kMaxGpuHeadDim on a GPU. ConfigError;
// asked before weights are loaded.
inline constexpr int64_t kMaxGpuHeadDim = 256;
void require_head_dim(int64_t head_dim, Device device);

// T; 0 of an empty tensor.
inline int64_t rows_of(const ConstTensor& x) {
  return x.rank > 0 ? x.shape[0] : 0;
}

}  // namespace lockstep::kernels
