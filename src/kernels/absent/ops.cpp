// Stands in for the GPU code in a build without CUDA. Nothing here is ever reached: no Stream on a GPU can be made.
#include "kernels/cuda/ops.h"

#include "core/absent/without_cuda.h"
#include "kernels/cuda/kernel_choice.h"
#include "kernels/cuda/token_logprobs.h"
#include "kernels/value_head.h"

namespace lockstep::kernels::cuda {

void pack_rows(PackedWeight&, std::span<const NamedTensor* const>, Stream&) {
  refuse_without_cuda();
}
void unpack_rows(Tensor, const PackedWeight&, int64_t, int64_t, Stream&) {
  refuse_without_cuda();
}
void embedding_gather(Tensor, const PackedWeight&, std::span<const int32_t>, Stream&) {
  refuse_without_cuda();
}
void linear(const LinearCall&, Stream&) {
  refuse_without_cuda();
}
UnfinishedLinear begin_linear(const LinearCall&, Stream&) {
  refuse_without_cuda();
}
UnfinishedLinear begin_linear_backward(const LinearBackwardCall&, Stream&) {
  refuse_without_cuda();
}
bool qk_norm_rope_forward(const QkNormRopeCall&, const LinearCall&, Stream&) {
  refuse_without_cuda();
}
void lora_shrink(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  refuse_without_cuda();
}
void lora_expand(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  refuse_without_cuda();
}
void lora_expand_backward(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  refuse_without_cuda();
}
void lora_shrink_backward(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  refuse_without_cuda();
}
void lora_backward(const GradientPlan&, Tensor, ConstTensor, ConstTensor, ConstTensor, std::span<const LoraPair>,
                   Stream&) {
  refuse_without_cuda();
}
void lora_gradient(const GradientPlan&, ConstTensor, ConstTensor, ConstTensor, ConstTensor, std::span<const LoraPair>,
                   Stream&) {
  refuse_without_cuda();
}
void qk_norm_rope_forward(const QkNormRopeCall&, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void qk_norm_rope_backward(Tensor, ConstTensor, ConstTensor, const QkNormRopeSpec&, Stream&) {
  refuse_without_cuda();
}
bool qk_norm_rope_forward(const QkNormRopeCall&, const UnfinishedLinear&, bool, Stream&) {
  refuse_without_cuda();
}
bool qk_norm_rope_attention_forward(Tensor, const QkNormRopeCall&, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void attention_forward(Tensor, Tensor, ConstTensor, const AttentionShape&, const DeviceSequences&, Stream&) {
  refuse_without_cuda();
}
void attention_backward(Tensor, Tensor, Tensor, ConstTensor, ConstTensor, ConstTensor, ConstTensor,
                        const AttentionScratch&, const AttentionShape&, const DeviceSequences&, Stream&) {
  refuse_without_cuda();
}
void rmsnorm_forward(Tensor, Tensor, ConstTensor, ConstTensor, float, Stream&) {
  refuse_without_cuda();
}
void rmsnorm_backward(Tensor, ConstTensor, ConstTensor, ConstTensor, ConstTensor, bool, Stream&) {
  refuse_without_cuda();
}
void swiglu_forward(Tensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
bool swiglu_forward(Tensor, const UnfinishedLinear&, bool, Stream&) {
  refuse_without_cuda();
}
void swiglu_backward(Tensor, ConstTensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
bool swiglu_backward(Tensor, const UnfinishedLinear&, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void add(Tensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void value_head_forward(Tensor, ConstTensor, ConstTensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void value_head_backward(Tensor, ConstTensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void value_head_gradient(Tensor, Tensor, ConstTensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void gather_rows(Tensor, ConstTensor, std::span<const int32_t>, Stream&) {
  refuse_without_cuda();
}
bool all_finite(ConstTensor, Stream&) {
  refuse_without_cuda();
}
void scatter_rows(Tensor, ConstTensor, std::span<const int32_t>, Stream&) {
  refuse_without_cuda();
}
void dropout(Tensor, ConstTensor, float, const DropoutCounter&, bool, Stream&) {
  refuse_without_cuda();
}
void logprob_forward(Tensor, Tensor, Tensor, ConstTensor, std::span<const int32_t>, float, Stream&) {
  refuse_without_cuda();
}
void logprob_backward(Tensor, ConstTensor, std::span<const int32_t>, float, ConstTensor, ConstTensor, ConstTensor,
                      ConstTensor, Stream&) {
  refuse_without_cuda();
}
bool makes_linear_logprob() {
  return false;
}
void linear_logprob_forward(const LinearLogprob&, Stream&) {
  refuse_without_cuda();
}
void linear_logprob_backward(const LinearLogprobBackward&, Stream&) {
  refuse_without_cuda();
}
void decode_draw(const DecodeState&, ConstTensor, float, Stream&) {
  refuse_without_cuda();
}
void sample_tokens(std::span<int32_t>, ConstTensor, std::span<const SampleRow>, Stream&) {
  refuse_without_cuda();
}
void lora_shrink_tiles(Tensor, ConstTensor, const LoraTiles&, int64_t, Stream&) {
  refuse_without_cuda();
}
void lora_expand_tiles(Tensor, ConstTensor, const LoraTiles&, int64_t, Stream&) {
  refuse_without_cuda();
}
void edit_logits(Tensor, std::span<const LogitEdit>, Stream&) {
  refuse_without_cuda();
}
void top_logprobs(const TopLogprobs&, ConstTensor, ConstTensor, std::span<const int32_t>, float, Stream&) {
  refuse_without_cuda();
}
void token_logprobs_forward(Tensor, ConstTensor, ConstTensor, std::span<const int32_t>, float, Stream&) {
  refuse_without_cuda();
}
void prepare_token_gradients(const TokenLogprobsBackward&, Stream&) {
  refuse_without_cuda();
}
void place_token_gradients(const TokenLogprobsBackward&, Stream&) {
  refuse_without_cuda();
}
void adamw(Tensor, Tensor, ConstTensor, Tensor, Tensor, ConstTensor, const AdamWStep&, Stream&) {
  refuse_without_cuda();
}
void round_to_working(Tensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void round_transposed(Tensor, ConstTensor, std::span<const FlatMatrix>, Stream&) {
  refuse_without_cuda();
}
double sum_of_squares(ConstTensor, Stream&) {
  refuse_without_cuda();
}
void choose_kernels(KernelChoice, Stream&) {
  refuse_without_cuda();
}
void imitate_least_gpu(bool) {}
void fill_uniform(Tensor, float, uint64_t, uint32_t, Stream&) {
  refuse_without_cuda();
}
double measure_fma_gflops(double, Stream&) {
  refuse_without_cuda();
}
double measure_read_gb_s(size_t, double, Stream&) {
  refuse_without_cuda();
}
double measure_host_copy_gb_s(double, Stream&) {
  refuse_without_cuda();
}

}  // namespace lockstep::kernels::cuda
