// What adapters have at the embedding, forward and backward. T rows, each of one token; N tokens, K the width.
#pragma once

#include <span>

#include "core/memory.h"
#include "kernels/lora.h"

namespace lockstep::kernels {

// Consecutive rows of one adapter.
struct EmbeddingSegment {
  int64_t row_begin = 0, rows = 0;
  ConstTensor weight = {};  // [N, K] in place of the base's: f32, on a GPU bf16; or empty
  // A^T [N, rank] (on a GPU, too), B^T [rank, K], of the weight's type. Those of `subtracted` are constants.
  std::span<const LoraPair> pairs = {}, subtracted = {};
  const GradientPlan* gradients = nullptr;  // backward: where those of these rows go; empty: nowhere
  int64_t weight_gradient = -1;             // offset of the weight's [N, K], floats; -1: it is a constant
};
struct EmbeddingAdapters {
  std::span<const EmbeddingSegment> segments = {};
  Arena* arena = nullptr;  // scratch memory, of the stream's device
};

// y[t, :] = weight[ids[t], :], where a segment has one; then y[t, :] += scale_p A_p^T[ids[t], :] B_p for its pairs in
// order, the subtracted ones last (lora_expand). No dropout, as in PEFT.
//   y [T, K] activations: rows of the base's embedding (embedding_gather); ids [T] in [0, N), in the stream's memory
// Rows of no segment stay. ShapeError, DTypeError.
void embedding_adapters(Tensor y, std::span<const int32_t> ids, const EmbeddingAdapters& adapters, Stream& stream);

// The gradients of weights and of the pairs' A and B. A row of a weight, or of A^T, is one chain over the lane's rows
// of its token, in order; dB is a weight_gradient (kernels/output_columns.h).
//   dy [T, K] activations
void embedding_adapters_backward(ConstTensor dy, std::span<const int32_t> ids, const EmbeddingAdapters& adapters,
                                 Stream& stream);

}  // namespace lockstep::kernels
