// Linear calls some of whose segments bring more than LoRA pairs: a weight or a bias in place of the layer's, a factor
// of each output, pairs that are subtracted. Made of the ops of kernels/output_columns.h and of calls without extras.
#pragma once

#include "kernels/linear.h"

namespace lockstep::kernels {

bool has_extras(const LinearAdapters& adapters);

// Throws ShapeError, DTypeError.
void require_extras(const LinearAdapters& adapters, const PackedWeight& weight, const char* op, const Stream& stream);

// Arguments have been checked.
void linear_with_extras(const LinearCall& call, Stream& stream);
void linear_backward_with_extras(const LinearBackwardCall& call, Stream& stream);

}  // namespace lockstep::kernels
