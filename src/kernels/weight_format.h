// How the values of a packed weight are stored: f32, bf16, f16. A quantized format (NF4, FP8, MXFP4) would be one more.
//
// Who packs a weight says the format (for the matrices of a model's blocks block_format of model/spec.h); what packs,
// unpacks and multiplies goes by PackedWeight::format and refuses a format that it does not read. A format with scales
// keeps them behind the values in the same memory, and packed_bytes counts both. CONTRIBUTING.md lists every file.
#pragma once

#include "kernels/kernels.h"

namespace lockstep::kernels {

enum class WeightFormat : uint8_t { f32, bf16, f16 };

inline const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return "f32";
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::f16: return "f16";
  }
  return "?";
}

// The format without quantization, where files hold `stored` (f32 | bf16 | f16): a GPU rounds f32 and f16 to bf16.
inline WeightFormat plain_format(DType stored, Device device) {
  if (device != Device::cpu || stored == DType::bf16) return WeightFormat::bf16;
  return stored == DType::f16 ? WeightFormat::f16 : WeightFormat::f32;
}

// Whether values of this type can be packed in the format.
inline bool can_pack(DType stored, WeightFormat format, Device device) {
  return format == plain_format(stored, device);
}

// On the CPU the rows (outputs) of a weight are stored in panels of so many, the last one filled up with zeros.
inline constexpr int64_t kPanel = 32;

// Memory of a packed weight of `rows` outputs and `depth` inputs.
inline size_t packed_bytes(WeightFormat format, int64_t rows, int64_t depth, Device device) {
  const int64_t stored_rows = device == Device::cpu ? (rows + kPanel - 1) / kPanel * kPanel : rows;
  const size_t bytes_each = format == WeightFormat::f32 ? 4 : 2;
  return static_cast<size_t>(stored_rows * depth) * bytes_each;
}

}  // namespace lockstep::kernels
