// Log-probs of K candidate tokens of each row, beside that of its target (kernels/logprob.h), and their gradient: what
// distillation from the likeliest tokens of a teacher reads.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// logprobs[r, i] = logits[r, tokens[r K + i]] * inv_temperature - lse[r], as top_logprobs works it out; 0 where the
// token is -1
//   logprobs [R, K] f32   logits [R, V] f32   lse [R] f32 of logprob_forward   tokens [R * K] in the stream's memory
// Throws ShapeError, DTypeError; the CPU DataError for a token outside (a GPU does not look).
void token_logprobs_forward(Tensor logprobs, ConstTensor logits, ConstTensor lse, std::span<const int32_t> tokens,
                            float inv_temperature, Stream& stream);

// logprob_backward with a gradient of each candidate besides. D[r] = d_logprob[r] + sum_i d_token_logprobs[r, i]:
//   dlogits[r, v] = inv_temperature * (g[v] - D p[v] - d_entropy p[v] (z[v] - lse + entropy)),   p = exp(z - lse)
//   g[v] = d_logprob where v is the target, + d_token_logprobs[i] of every i whose token is v
// Shapes and aliasing as of logprob_backward; a row whose target is -1 gets zeros whatever its tokens are. scratch
// [K + 2, R] f32 is overwritten.
struct TokenLogprobsBackward {
  Tensor dlogits;
  ConstTensor logits;
  std::span<const int32_t> targets;
  float inv_temperature = 1;
  ConstTensor lse, entropy = {}, d_logprob, d_entropy = {};
  std::span<const int32_t> tokens;
  ConstTensor d_token_logprobs;  // [R, K] f32
  Tensor scratch;
};
void token_logprobs_backward(const TokenLogprobsBackward& call, Stream& stream);

}  // namespace lockstep::kernels
