// The launches that a linear call is made of on a GPU (linear.cu); linear_call.cpp chooses among them. Arguments have
// been checked. All of them have the bits of the ops one after the other.
#pragma once

#include "kernels/linear.h"

namespace lockstep::kernels::cuda {

// y = x W^T + bias + residual.
void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, ConstTensor residual,
                    Stream& stream);
void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream);

// What one launch has computed: nothing, y and h without B, or all of the call.
enum class AdaptedPart { nothing, inner, all };
AdaptedPart adapted_linear_begin(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                                 ConstTensor residual, std::span<const LoraPair> pairs, Stream& stream);

// These return false, and do nothing, where no such launch suits.
// act = swiglu of x W^T + bias and of the adapter's part. gate_up is never written.
bool adapted_swiglu_forward(Tensor act, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                            std::span<const LoraPair> pairs, Stream& stream);
// y, or with `swiglu` the activation, of the normalized input, which is never written.
bool normed_linear_forward(Tensor y, const LinearInput& input, const PackedWeight& weight, ConstTensor bias,
                           bool swiglu, Stream& stream);

}  // namespace lockstep::kernels::cuda
