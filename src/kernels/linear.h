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

// linear_forward with an adapter: lora_shrink(h, x), linear_forward(y, x), lora_expand(y, h), with their contracts and
// their bits. On a GPU the first two run side by side; on the CPU all are tasks of one parallel call.
//   h [T, total rank] activations, scratch
void adapted_linear_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, std::span<const LoraPair> pairs, Stream& stream);

// Its first half: y = linear_forward(x), h = lora_shrink(x): one launch of up to 64 rows where that is fastest.
void linear_shrink_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                           ConstTensor residual, std::span<const LoraPair> pairs, Stream& stream);

// The same for rows of many adapters on the CPU: `adapters` in order of rows; rows of none are base rows. A GPU takes
// tiles (DeviceError).   h [T, at least the total rank of any]
void adapted_linear_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, std::span<const LoraRows> adapters, Stream& stream);

// The same for rows of many adapters on a GPU.   h [T, tiles.h_columns()]
void adapted_linear_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, const LoraTiles& tiles, int64_t site, Stream& stream);

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
