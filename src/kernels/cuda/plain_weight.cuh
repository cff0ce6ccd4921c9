// What every GPU kernel that reads a frozen weight begins from.
#pragma once

#include <cuda_bf16.h>

#include "core/stream.h"
#include "kernels/packed_weight.h"

namespace lockstep::kernels::cuda {

// The weight's values, row-major [rows, depth]. A format that is not stored so is unpacked here into memory of the
// stream, or refused (DTypeError naming `op`), as all but bf16 are today. Defined in pack.cu.
const __nv_bfloat16* plain_values(const PackedWeight& weight, const char* op, Stream& stream);

}  // namespace lockstep::kernels::cuda
