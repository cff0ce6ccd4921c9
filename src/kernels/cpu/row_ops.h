// The CPU's side of the ops that work on rows or flat arrays. Arguments have been checked; contracts are in
// kernels/<op>.h.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/logit_edits.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/token_logprobs.h"
#include "kernels/top_logprobs.h"

namespace lockstep::kernels::cpu {

// What logprob_backward needs of one row besides its logits.
struct LogprobGrad {
  float inv_temperature = 1, lse = 0, entropy = 0, d_logprob = 0, d_entropy = 0;
};

// The scalars of an AdamW step as PyTorch works them out: in double, rounded to f32 where a tensor begins.
struct AdamWScalars {
  float decay, beta2, one_minus_beta1, one_minus_beta2, minus_step_size, bias2_sqrt, eps, grad_scale;
};

void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream);
void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream);
void rope(Tensor x, int64_t heads, std::span<const int32_t> positions, const RopeTable& table, int direction,
          Stream& stream);
void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream);
void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream);
void add(Tensor y, ConstTensor x, Stream& stream);
void add_rounded(Tensor out, ConstTensor weight, ConstTensor delta, float scale, Stream& stream);
void gather_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream);
void scatter_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream);
void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream);
void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream);
void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream);
void sample_tokens(std::span<int32_t> tokens, Tensor scratch, ConstTensor logits, std::span<const SampleRow> rows,
                   Stream& stream);
void edit_logits(Tensor logits, std::span<const LogitEdit> edits);
void top_logprobs(const TopLogprobs& top, ConstTensor logits, ConstTensor lse, std::span<const int32_t> targets,
                  float inv_temperature, Stream& stream);
void token_logprobs_forward(Tensor logprobs, ConstTensor logits, ConstTensor lse, std::span<const int32_t> tokens,
                            float inv_temperature, Stream& stream);
// The two halves of token_logprobs_backward around logprob_backward: scratch, and the entries that it holds.
void prepare_token_gradients(const TokenLogprobsBackward& call, Stream& stream);
void place_token_gradients(const TokenLogprobsBackward& call, Stream& stream);
void softmax_unnormalized(Tensor probabilities, Tensor sums, ConstTensor logits, float inv_temperature, Stream& stream);
void adamw(Tensor w_new, ConstTensor w, Tensor m, Tensor v, ConstTensor grad, const AdamWStep& options, Stream& stream);
void round_to_working(Tensor working, ConstTensor w, Stream& stream);
void round_transposed(Tensor working, ConstTensor w, std::span<const FlatMatrix> matrices, Stream& stream);
double sum_of_squares(ConstTensor x, Stream& stream);
void fill_uniform(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream);

}  // namespace lockstep::kernels::cpu
