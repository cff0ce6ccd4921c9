// The GPU implementation of every op. Arguments are checked before; contracts are in kernels/<op>.h. In a build without
// CUDA kernels/absent implements these; they are then never called, because no Stream on a GPU can be created.
#pragma once

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/decode.h"
#include "kernels/elementwise.h"
#include "kernels/limits.h"
#include "kernels/linear.h"
#include "kernels/linear_logprob.h"
#include "kernels/logit_edits.h"
#include "kernels/logprob.h"
#include "kernels/lora.h"
#include "kernels/pack.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/random.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/swiglu.h"
#include "kernels/top_logprobs.h"

namespace lockstep::kernels::cuda {

// pack.cu
void pack_rows(PackedWeight& weight, std::span<const NamedTensor* const> parts, Stream& stream);
void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream);
void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream);

// linear_call.cpp
void linear(const LinearCall& call, Stream& stream);
UnfinishedLinear begin_linear(const LinearCall& call, Stream& stream);
UnfinishedLinear begin_linear_backward(const LinearBackwardCall& call, Stream& stream);
// Many rows whose qkv is not kept. Returns false if nothing was done.
bool qk_norm_rope_forward(const QkNormRopeCall& call, const LinearCall& qkv, Stream& stream);

// lora.cu
void lora_shrink(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream);
void lora_expand(Tensor y, ConstTensor h, std::span<const LoraPair> pairs, Stream& stream);
void lora_shrink_tiles(Tensor h, ConstTensor x, const LoraTiles& tiles, int64_t site, Stream& stream);
void lora_expand_tiles(Tensor y, ConstTensor h, const LoraTiles& tiles, int64_t site, Stream& stream);
void lora_expand_backward(Tensor dh, ConstTensor dy, std::span<const LoraPair> pairs, Stream& stream);
void lora_shrink_backward(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream);
void lora_backward(const GradientPlan& plan, Tensor dh, ConstTensor x, ConstTensor h, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream);
void lora_gradient(const GradientPlan& plan, ConstTensor x, ConstTensor h, ConstTensor dh, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream);

// qk_norm_rope.cu
void qk_norm_rope_forward(const QkNormRopeCall& call, ConstTensor qkv, Stream& stream);
void qk_norm_rope_backward(Tensor d_qkv, ConstTensor qkv, ConstTensor rstd, const QkNormRopeSpec& spec, Stream& stream);

// qk_norm_rope_delta.cu, attention_decode_heads.cu. Return false if nothing was done: the caller runs the separate ops.
bool qk_norm_rope_forward(const QkNormRopeCall& call, const UnfinishedLinear& qkv, bool keep, Stream& stream);
bool qk_norm_rope_attention_forward(Tensor o, const QkNormRopeCall& call, ConstTensor qkv, Stream& stream);

// attention_forward.cu, attention_decode.cu, attention_backward.cu
void attention_forward(Tensor o, Tensor stats, ConstTensor q, const AttentionShape& shape,
                       const DeviceSequences& sequences, Stream& stream);  // decode when sequences.tiles is nullptr
void attention_backward(Tensor dq, Tensor dk, Tensor dv, ConstTensor d_o, ConstTensor q, ConstTensor o,
                        ConstTensor stats, const AttentionScratch& scratch, const AttentionShape& shape,
                        const DeviceSequences& sequences, Stream& stream);

// What decode keeps between CTAs: partial o [sequences, spans, heads, head_dim], (m, l) [sequences, spans, heads, 2],
// then counters, one per sequence and head. The owner zeroes all of it once; every call leaves the counters zero. One
// scratch serves one (shape, num_sequences, max_positions): zero it again before using it for another.
inline int64_t span_scratch_floats(const AttentionShape& shape, int64_t num_sequences, int64_t max_positions) {
  const int64_t spans = (max_positions + kKeySpan - 1) / kKeySpan;
  return num_sequences * shape.heads * (spans * (shape.head_dim + 2) + 1);
}

// rmsnorm.cu, swiglu.cu, elementwise.cu
void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream);
void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream);
void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream);
// Return false if nothing was done: the caller adds the delta first.
bool swiglu_forward(Tensor y, const UnfinishedLinear& gate_up, bool keep, Stream& stream);
void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream);
bool swiglu_backward(Tensor d_gate_up, const UnfinishedLinear& dy, ConstTensor gate_up, Stream& stream);
void add(Tensor y, ConstTensor x, Stream& stream);
void gather_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream);
bool all_finite(ConstTensor x, Stream& stream);
void scatter_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream);
void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream);

// logprob.cu, sample.cu
void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream);
void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream);
bool makes_linear_logprob();
void linear_logprob_forward(const LinearLogprob& call, Stream& stream);
void linear_logprob_backward(const LinearLogprobBackward& call, Stream& stream);
void sample_tokens(std::span<int32_t> tokens, ConstTensor logits, std::span<const SampleRow> rows, Stream& stream);

// logit_edits.cu, top_logprobs.cu
void edit_logits(Tensor logits, std::span<const LogitEdit> edits, Stream& stream);
void top_logprobs(const TopLogprobs& top, ConstTensor logits, ConstTensor lse, std::span<const int32_t> targets,
                  float inv_temperature, Stream& stream);

// decode.cu
void decode_draw(const DecodeState& state, ConstTensor logits, float inv_temperature, Stream& stream);

// adamw.cu
void adamw(Tensor w_new, Tensor working, ConstTensor w, Tensor m, Tensor v, ConstTensor grad, const AdamWStep& options,
           Stream& stream);
void round_to_working(Tensor working, ConstTensor w, Stream& stream);
void round_transposed(Tensor working, ConstTensor w, std::span<const FlatMatrix> matrices, Stream& stream);
double sum_of_squares(ConstTensor x, Stream& stream);

// random.cu
void fill_uniform(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream);

// limits.cu
double measure_fma_gflops(double seconds, Stream& stream);  // bf16 matmul, 8192 cubed
double measure_read_gb_s(size_t bytes, double seconds, Stream& stream);
double measure_host_copy_gb_s(double seconds, Stream& stream);  // pack.cu, as weights are loaded

}  // namespace lockstep::kernels::cuda
