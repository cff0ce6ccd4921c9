// How the values of a packed weight are stored: f32, bf16, f16. A quantized format (NF4, FP8, MXFP4) would be one more.
//
// A new format is known to packed_format and packed_bytes, to what packs, unpacks and gathers rows (kernels/pack.h),
// and to the loads of the linear call; each of these refuses a format that it does not read. A format with scales keeps
// them behind the values in the same memory, and packed_bytes counts both. CONTRIBUTING.md lists every file.
#pragma once

#include "kernels/kernels.h"

namespace lockstep::kernels {

enum class WeightFormat : uint8_t { f32, bf16, f16 };
const char* format_name(WeightFormat format);

// Type of the values of a packed weight whose files hold `stored` (f32 | bf16 | f16): a GPU rounds f32 and f16 to bf16.
inline DType packed_dtype(DType stored, Device device) {
  return device == Device::cpu ? stored : DType::bf16;
}
// The format that goes with packed_dtype.
WeightFormat packed_format(DType stored, Device device);

// On the CPU the rows (outputs) of a weight are stored in panels of so many, the last one filled up with zeros.
inline constexpr int64_t kPanel = 32;

// Memory of a packed weight of `rows` outputs and `depth` inputs.
size_t packed_bytes(WeightFormat format, int64_t rows, int64_t depth, Device device);

}  // namespace lockstep::kernels
