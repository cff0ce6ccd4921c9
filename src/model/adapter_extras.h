// What kernels read of an adapter beside its factors, made of its own tensors and the base's: the factors of DoRA's
// outputs, whole biases, and weights in the layout of matmuls.
#pragma once

#include <memory>

#include "model/weights.h"

namespace lockstep::model {

// `version` with its extras, or as it is where its layout has nothing beside factors. Every version of such a layout
// needs this before a pass reads it, once for all passes: DoRA's norms cost about as much as a forward of `rank` rows
// in each target, a saved head is packed anew. Nothing is copied of the weights of an embedding.
//   factor = m / |W + scale (B A - B0 A0)|, row by row; 0 where that is 0 (arXiv 2402.09353, equation 5)
// Complete on return. ResourceError: no memory.
lora::AdapterVersion with_extras(lora::AdapterVersion version, const Weights& base, Stream& stream);

// Bytes that with_extras takes, for one version.
int64_t extras_bytes(const lora::AdapterLayout& layout, Device device);

// ConfigError unless the version has the extras of its layout.
void require_extras(const lora::AdapterVersion& version);

}  // namespace lockstep::model
