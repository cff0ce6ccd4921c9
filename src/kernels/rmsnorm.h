// Root mean square normalization. Source: arXiv 1910.07467, eq. 4.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// y = x * rstd * weight,  rstd = 1 / sqrt(mean(x^2) + eps), one row at a time: ((x * rstd) * weight) in that order.
//   x, y    [T, D] f32   y may be x
//   weight  [D]    f32
//   rstd    [T]    f32   written unless empty; needed by backward
// Overwrites. A row's result does not depend on T. Used for whole rows and, on a [T*H, head_dim] view, for q/k norms.
void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream);

// dx (+)= rstd * (dy*weight) - x * rstd^3 / D * sum_d(dy*weight*x)
//   dx [T, D] f32; continues dx when `accumulate`; dx may be dy when not accumulating
void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream);

}  // namespace lockstep::kernels
