// Root mean square normalization. Source: arXiv 1910.07467, eq. 4.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// y = x * rstd * weight,  rstd = 1 / sqrt(mean(x^2) + eps), one row at a time: ((x * rstd) * weight) in that order.
//   x, y    [T, D] activations   y may be x; or (CPU) [T, H, D], where every last dimension is a row, rstd is [T * H]
//   weight  [D]    f32
//   rstd    [T]    f32   written unless empty; needed by backward
// Overwrites. A row's result does not depend on T. Used for whole rows and, as [T, H, head_dim], for q/k norms.
// Throws ShapeError, DTypeError.
void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream);

// dx (+)= rstd * (dy*weight) - x * rstd^3 / D * sum_d(dy*weight*x)
//   dx [T, D] activations (or [T, H, D] as above); continues dx when `accumulate`; dx may be dy when not accumulating
void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream);

}  // namespace lockstep::kernels
