// Products with a frozen packed weight. There is no gradient for W: the base never has one.
#pragma once

#include "kernels/pack.h"

namespace lockstep::kernels {

// y[t,n] = bias[n] + sum_k x[t,k] W[n,k]     (the chain starts at bias[n], or at 0 without bias)
//   x     [T, K] f32     y [T, N] f32, overwritten; no aliasing     bias [N] f32 or empty
// A row's bits do not depend on T.
void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, Stream& stream);

// dx[t,k] (+)= sum_n dy[t,n] W[n,k]           (the chain runs over n in order; continues dx when `accumulate`)
//   dy [T, N] f32     dx [T, K] f32
void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream);

}  // namespace lockstep::kernels
