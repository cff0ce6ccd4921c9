// Stands in for the GPU code in a build without CUDA. Nothing here is ever reached: no Stream on a GPU can be made.
#include "kernels/cuda/ops.h"

#include "core/error.h"
#include "kernels/cuda/kernel_choice.h"

namespace lockstep::kernels::cuda {

namespace {
[[noreturn]] void absent() {
  throw DeviceError(
      {.what = "this lockstep was built without CUDA", .attempt = "StreamOptions::device cpu, or build with nvcc"});
}
}  // namespace

void pack_rows(PackedWeight&, std::span<const NamedTensor* const>, Stream&) {
  absent();
}
void unpack_rows(Tensor, const PackedWeight&, int64_t, int64_t, Stream&) {
  absent();
}
void embedding_gather(Tensor, const PackedWeight&, std::span<const int32_t>, Stream&) {
  absent();
}
void linear(const LinearCall&, Stream&) {
  absent();
}
UnfinishedLinear begin_linear(const LinearCall&, Stream&) {
  absent();
}
UnfinishedLinear begin_linear_backward(const LinearBackwardCall&, Stream&) {
  absent();
}
void lora_shrink(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  absent();
}
void lora_expand(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  absent();
}
void lora_expand_backward(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  absent();
}
void lora_shrink_backward(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  absent();
}
void lora_gradient(const GradientPlan&, ConstTensor, ConstTensor, ConstTensor, ConstTensor, std::span<const LoraPair>,
                   Stream&) {
  absent();
}
void qk_norm_rope_forward(const QkNormRopeCall&, ConstTensor, Stream&) {
  absent();
}
void qk_norm_rope_backward(Tensor, ConstTensor, ConstTensor, const QkNormRopeSpec&, Stream&) {
  absent();
}
bool qk_norm_rope_forward(const QkNormRopeCall&, const UnfinishedLinear&, bool, Stream&) {
  absent();
}
bool qk_norm_rope_attention_forward(Tensor, const QkNormRopeCall&, ConstTensor, Stream&) {
  absent();
}
void attention_forward(Tensor, Tensor, ConstTensor, const AttentionShape&, const DeviceSequences&, Stream&) {
  absent();
}
void attention_backward(Tensor, Tensor, Tensor, ConstTensor, ConstTensor, ConstTensor, ConstTensor, Tensor,
                        const AttentionShape&, const DeviceSequences&, Stream&) {
  absent();
}
void rmsnorm_forward(Tensor, Tensor, ConstTensor, ConstTensor, float, Stream&) {
  absent();
}
void rmsnorm_backward(Tensor, ConstTensor, ConstTensor, ConstTensor, ConstTensor, bool, Stream&) {
  absent();
}
void swiglu_forward(Tensor, ConstTensor, Stream&) {
  absent();
}
bool swiglu_forward(Tensor, const UnfinishedLinear&, bool, Stream&) {
  absent();
}
void swiglu_backward(Tensor, ConstTensor, ConstTensor, Stream&) {
  absent();
}
bool swiglu_backward(Tensor, const UnfinishedLinear&, ConstTensor, Stream&) {
  absent();
}
void add(Tensor, ConstTensor, Stream&) {
  absent();
}
void value_head_forward(Tensor, ConstTensor, ConstTensor, ConstTensor, Stream&) {
  absent();
}
void value_head_backward(Tensor, ConstTensor, ConstTensor, Stream&) {
  absent();
}
void value_head_gradient(Tensor, Tensor, ConstTensor, ConstTensor, Stream&) {
  absent();
}
void gather_rows(Tensor, ConstTensor, std::span<const int32_t>, Stream&) {
  absent();
}
void scatter_rows(Tensor, ConstTensor, std::span<const int32_t>, Stream&) {
  absent();
}
void dropout(Tensor, ConstTensor, float, const DropoutCounter&, bool, Stream&) {
  absent();
}
void logprob_forward(Tensor, Tensor, Tensor, ConstTensor, std::span<const int32_t>, float, Stream&) {
  absent();
}
void logprob_backward(Tensor, ConstTensor, std::span<const int32_t>, float, ConstTensor, ConstTensor, ConstTensor,
                      ConstTensor, Stream&) {
  absent();
}
void decode_draw(const DecodeState&, ConstTensor, float, Stream&) {
  absent();
}
void sample_tokens(std::span<int32_t>, ConstTensor, std::span<const SampleRow>, Stream&) {
  absent();
}
void lora_shrink_tiles(Tensor, ConstTensor, const LoraTiles&, int64_t, Stream&) {
  absent();
}
void lora_expand_tiles(Tensor, ConstTensor, const LoraTiles&, int64_t, Stream&) {
  absent();
}
void edit_logits(Tensor, std::span<const LogitEdit>, Stream&) {
  absent();
}
void top_logprobs(const TopLogprobs&, ConstTensor, ConstTensor, std::span<const int32_t>, float, Stream&) {
  absent();
}
void adamw(Tensor, Tensor, ConstTensor, Tensor, Tensor, ConstTensor, const AdamWStep&, Stream&) {
  absent();
}
void round_to_working(Tensor, ConstTensor, Stream&) {
  absent();
}
void round_transposed(Tensor, ConstTensor, std::span<const FlatMatrix>, Stream&) {
  absent();
}
double sum_of_squares(ConstTensor, Stream&) {
  absent();
}
void choose_kernels(KernelChoice, Stream&) {
  absent();
}
void fill_uniform(Tensor, float, uint64_t, uint32_t, Stream&) {
  absent();
}
double measure_fma_gflops(double, Stream&) {
  absent();
}
double measure_read_gb_s(size_t, double, Stream&) {
  absent();
}
double measure_host_copy_gb_s(double, Stream&) {
  absent();
}

}  // namespace lockstep::kernels::cuda
