// From logits to log-probabilities and back: the only code that turns logits into a token's log-probability, for the
// trainer, the engine and `score` alike.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// z = logits * inv_temperature;  m = max z;  S = sum exp(z - m)  (16 lanes: the rules in kernels/kernels.h)
// lse = m + log S;   logprob[t] = z[target[t]] - lse;   entropy[t] = log S - sum exp(z - m) (z - m) / S    (from S on
// in double)
// CUDA: max and sums over pieces of 256 entries, joined to chunks of 4096, and these in order; otherwise the same.
//   logits [T, V] f32    targets [T] in [0, V); -1 skips the row: logprob, entropy, lse and later dlogits are 0
//   logprob, entropy, lse [T] f32; entropy may be empty
// Throws ShapeError, DTypeError; the CPU DataError for a target outside (a GPU does not look).
void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream);

// dlogits = inv_temperature * ( d_logprob * (onehot - p) - d_entropy * p * (z - lse + entropy) ),  p = exp(z - lse)
// CUDA: p = w exp(m - lse) with w = exp(z - m) rounded to an activation, m the largest z of the piece; exact for the
// target. So linear_logprob_backward, which keeps w instead of logits, has the same bits.
// dlogits [T, V] activations; overwritten. It may begin where logits begin: on the CPU it is logits then, on a GPU its
// rows lie in the memory of the rows of logits (data the same, row_stride twice that of logits). d_entropy may be
// empty; then entropy is not read.
void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream);

// probabilities[t, v] = exp(z - m) (unnormalized, so the largest is 1) and, in sums[t], their sum S as above. For
// sampling on the CPU.
//   probabilities [T, V] f32, may be logits
void softmax_unnormalized(Tensor probabilities, Tensor sums, ConstTensor logits, float inv_temperature, Stream& stream);

}  // namespace lockstep::kernels
