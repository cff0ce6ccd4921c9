// A product with what stands before and after it in a decoder layer.
#pragma once

#include "kernels/lora.h"
#include "kernels/pack.h"

namespace lockstep::kernels {

// What is not wanted is empty. T tokens, K inputs and N outputs of the weight.
struct FusedLinear {
  Tensor y;       // [T, N] activations or f32, as linear_forward; with swiglu [T, N / 2]
  ConstTensor x;  // [T, K] activations
  const PackedWeight* weight = nullptr;
  ConstTensor bias, residual;  // as linear_forward; no residual with swiglu
  ConstTensor norm_weight;     // [K] f32: x is normalized first
  float norm_eps = 0;
  Tensor normed;                    // [T, K] scratch, with norm_weight
  bool swiglu = false;              // W is gate over up: y = silu(gate) * up
  Tensor gate_up;                   // [T, N] scratch, with swiglu
  std::span<const LoraPair> pairs;  // the adapter, after bias and residual
  Tensor h;                         // [T, total rank] scratch, with pairs
};

// Exactly the bits of rmsnorm_forward, linear_forward, lora_shrink, lora_expand and swiglu_forward in this order, in
// one launch on a GPU where T is small. Overwrites y; scratch holds nothing afterwards. y may be residual, nothing
// else.
void fused_linear_forward(const FusedLinear& call, Stream& stream);

}  // namespace lockstep::kernels
