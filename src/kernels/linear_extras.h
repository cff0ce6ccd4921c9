// Linear calls some of whose segments bring more than LoRA pairs: a weight or a bias in place of the layer's, a factor
// of each output. On the CPU; a GPU refuses them.
#pragma once

#include "kernels/linear.h"

namespace lockstep::kernels {

bool has_extras(const LinearAdapters& adapters);

// ShapeError, DTypeError; ConfigError naming the field where the device does not run it.
void require_extras(const LinearAdapters& adapters, const PackedWeight& weight, const char* op, const Stream& stream);

// Arguments have been checked.
void linear_with_extras(const LinearCall& call, Stream& stream);
void linear_backward_with_extras(const LinearBackwardCall& call, Stream& stream);

}  // namespace lockstep::kernels
