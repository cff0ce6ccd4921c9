// The GPU's side of kernels/token_logprobs.h; arguments have been checked.
#pragma once

#include "kernels/token_logprobs.h"

namespace lockstep::kernels::cuda {

void token_logprobs_forward(Tensor logprobs, ConstTensor logits, ConstTensor lse, std::span<const int32_t> tokens,
                            float inv_temperature, Stream& stream);
// The two halves of token_logprobs_backward around logprob_backward: scratch, and the entries that it holds.
void prepare_token_gradients(const TokenLogprobsBackward& call, Stream& stream);
void place_token_gradients(const TokenLogprobsBackward& call, Stream& stream);

}  // namespace lockstep::kernels::cuda
