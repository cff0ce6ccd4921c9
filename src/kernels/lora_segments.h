// The adapters' part of a linear call, segment by segment, by the ops of kernels/lora.h: what every backend falls back
// on, and the only code that knows dropout.
#pragma once

#include "kernels/linear.h"

namespace lockstep::kernels {

// y += scale (dropout(x) A) B of the segments' rows.   y [T, N], x [T, K]
void add_segments(Tensor y, ConstTensor x, const LinearAdapters& adapters, Stream& stream);

// dx += scale (dy B^T) A^T under the mask (unless dx is empty), and each segment's gradients.   dx, x [T, K], dy [T, N]
void add_segments_backward(Tensor dx, ConstTensor dy, ConstTensor x, const LinearAdapters& adapters, Stream& stream);

// Whether one segment has all rows and its pairs read them as they are: then one call of an op serves all.
bool is_one_adapter(const LinearAdapters& adapters, int64_t rows);

}  // namespace lockstep::kernels
