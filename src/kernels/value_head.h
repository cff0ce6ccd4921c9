// A linear head of one output per row: what a critic makes of the final hidden state.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

//   v, dv      [N]     f32
//   x, dx      [N, D]  activations (f32 on the CPU, bf16 on a GPU), row strides free
//   weight     [D]     f32
//   bias       [1]     f32
// All in the stream's memory. A row's results do not depend on N. Throw ShapeError, DTypeError.

// v[n] = weight . x[n] + bias.   A sum inside a row (kernels/kernels.h), then the bias. Overwrites v.
void value_head_forward(Tensor v, ConstTensor x, ConstTensor weight, ConstTensor bias, Stream& stream);
// dx[n] = dv[n] weight.   Overwrites dx.
void value_head_backward(Tensor dx, ConstTensor dv, ConstTensor weight, Stream& stream);
// d_weight += sum_n dv[n] x[n],  d_bias += sum_n dv[n].   One chain over the rows in order, continued across calls, so
// that rows may be split over calls in any way.
void value_head_gradient(Tensor d_weight, Tensor d_bias, ConstTensor dv, ConstTensor x, Stream& stream);

// The two implementations, of checked arguments.
namespace cpu {
void value_head_forward(Tensor v, ConstTensor x, ConstTensor weight, ConstTensor bias, Stream& stream);
void value_head_backward(Tensor dx, ConstTensor dv, ConstTensor weight, Stream& stream);
void value_head_gradient(Tensor d_weight, Tensor d_bias, ConstTensor dv, ConstTensor x, Stream& stream);
}  // namespace cpu
namespace cuda {
void value_head_forward(Tensor v, ConstTensor x, ConstTensor weight, ConstTensor bias, Stream& stream);
void value_head_backward(Tensor dx, ConstTensor dv, ConstTensor weight, Stream& stream);
void value_head_gradient(Tensor d_weight, Tensor d_bias, ConstTensor dv, ConstTensor x, Stream& stream);
}  // namespace cuda

}  // namespace lockstep::kernels
