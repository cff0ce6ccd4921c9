// The most likely tokens of each row, for clients that ask what else the model might have said.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// tokens[r, i], logprobs[r, i]: the i-th largest logit of row r (equals: the lower id first) and
// logits * inv_temperature - lse, as logprob_forward works it out.  ranks[r] = 1 + entries larger than that of
// targets[r]
//   logits [R, V] f32   lse [R] f32 of logprob_forward   targets, ranks [R]; both may be empty
//   tokens [R * N], logprobs [R, N] f32   1 <= N <= V; all spans in the stream's memory
// Rows that are not finite give no error and mean nothing. Throws ShapeError, DTypeError.
struct TopLogprobs {
  std::span<int32_t> tokens;
  Tensor logprobs;
  std::span<int32_t> ranks;
};
void top_logprobs(const TopLogprobs& top, ConstTensor logits, ConstTensor lse, std::span<const int32_t> targets,
                  float inv_temperature, Stream& stream);

}  // namespace lockstep::kernels
