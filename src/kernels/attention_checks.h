// What attention and the ops around it want of their arguments. Throws ShapeError.
#pragma once

#include "kernels/attention.h"

namespace lockstep::kernels {

void require_shape(const AttentionShape& shape, const char* op);
void require_sequences(std::span<const AttentionSequence> sequences, int64_t rows, const char* op);

// T; 0 of an empty tensor.
inline int64_t rows_of(const ConstTensor& x) {
  return x.rank > 0 ? x.shape[0] : 0;
}

}  // namespace lockstep::kernels
