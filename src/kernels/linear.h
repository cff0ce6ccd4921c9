// Products with a frozen packed weight. There is no gradient for W: the base never has one.
#pragma once

#include <span>

#include "kernels/lora.h"
#include "kernels/pack.h"

namespace lockstep::kernels {

// y[t,n] = bias[n] + sum_k x[t,k] W[n,k] + residual[t,n]
//   x [T, K] activations (f32 on the CPU, bf16 on a GPU)     y [T, N] activations, or f32 on a GPU (logits);
//   overwritten bias [N] f32 or empty     residual [T, N] like y, or empty; no aliasing
// CPU: the chain starts at bias[n], or at 0 without bias; the residual is added to its end. CUDA: the chain of groups
// of 16 k in order starts at 0; then bias, then residual are added in f32, and the sum is rounded once. A row's bits do
// not depend on T.
void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, ConstTensor residual,
                    Stream& stream);

// y = linear_forward(x), h = lora_shrink(x), with their contracts and their bits; returns what y still lacks, which is
// nothing where a GPU makes the whole product of up to 64 rows in one launch.   h [T, total rank] activations
[[nodiscard]] PendingDelta adapted_linear_begin(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight,
                                                ConstTensor bias, ConstTensor residual, std::span<const LoraPair> pairs,
                                                Stream& stream);

// act = swiglu_forward of such a product without residual, when it is complete. Up to 64 rows on a GPU may be one
// launch, which leaves gate_up [T, 2F] unwritten.
void adapted_swiglu_forward(Tensor act, Tensor gate_up, Tensor h, ConstTensor x, const PackedWeight& weight,
                            ConstTensor bias, std::span<const LoraPair> pairs, Stream& stream);

// On the CPU: linear_forward, and lora_shrink and lora_expand of every adapter's rows, as tasks of one parallel call.
// `adapters` in order of rows; rows of none are base rows. DeviceError on a GPU.
//   h [T, at least the total rank of any], scratch
void adapted_linear_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, std::span<const LoraRows> adapters, Stream& stream);

// What a product reads: rmsnorm_forward(x, weight, eps), or x itself without weight.
struct LinearInput {
  ConstTensor x, norm_weight = {};
  float norm_eps = 0;
};
// norm = rmsnorm_forward(input) if it has a weight, y = linear_forward(norm), with their contracts and their bits. One
// row of a large weight on a GPU may be one launch, which leaves `norm` [T, K] unwritten.
void normed_linear_forward(Tensor y, Tensor norm, const LinearInput& input, const PackedWeight& weight,
                           ConstTensor bias, Stream& stream);
// gate_up = normed_linear_forward(input), act = swiglu_forward(gate_up). Up to 64 rows on a GPU may be one launch after
// the norm, which leaves gate_up [T, 2F] unwritten.
void normed_swiglu_forward(Tensor act, Tensor gate_up, Tensor norm, const LinearInput& input,
                           const PackedWeight& weight, ConstTensor bias, Stream& stream);

// dx[t,k] (+)= sum_n dy[t,n] W[n,k]           (the chain runs over n in order; continues dx when `accumulate`)
//   dy [T, N], dx [T, K] activations. On a GPU groups of 16 n in order, and `accumulate` adds in f32 before the
//   rounding.
void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream);

}  // namespace lockstep::kernels
