// A frozen weight in the layout that the linear call reads. kernels/pack.h makes one.
#pragma once

#include "core/memory.h"
#include "kernels/weight_format.h"

namespace lockstep::kernels {

// W [N, K] packed once. CPU: panels [ceil(N/32)][K][32] of its format; rows beyond N are zero. CUDA: row-major [N, K].
// Immutable after pack_weight; safe to read from many threads.
struct PackedWeight {
  int64_t rows = 0;                         // N, outputs
  int64_t depth = 0;                        // K, inputs
  DType dtype = DType::f32;                 // f32 | bf16 | f16; as it was given
  WeightFormat format = WeightFormat::f32;  // as it lies in `panels`
  Buffer panels;
};

// DTypeError naming `op` unless the weight is stored like this.
void require_format(const PackedWeight& weight, WeightFormat format, const char* op);

}  // namespace lockstep::kernels
