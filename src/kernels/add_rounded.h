// A change added to stored weights, in f32, and rounded once: what merging an adapter writes.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// out[i] = round(weight[i] + scale * delta[i])
//   out     any shape, contiguous   f32, bf16 or f16, to nearest even; overflow is infinite, a NaN stays one
//   weight  as many elements        f32, bf16 or f16; may be out if the type is the same
//   delta   as many elements  f32, or empty: out = round(weight)
// The sum is one fused multiply-add. Runs on the calling thread, of whose stream only the instruction set is used: the
// caller splits the elements. CPU only. Throws ShapeError, DTypeError.
void add_rounded(Tensor out, ConstTensor weight, ConstTensor delta, float scale, Stream& stream);

}  // namespace lockstep::kernels
