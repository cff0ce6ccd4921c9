#include "kernels/weight_format.h"

namespace lockstep::kernels {

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return "f32";
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::f16: return "f16";
  }
  return "?";
}

WeightFormat packed_format(DType stored, Device device) {
  const DType packed = packed_dtype(stored, device);
  if (packed == DType::bf16) return WeightFormat::bf16;
  return packed == DType::f16 ? WeightFormat::f16 : WeightFormat::f32;
}

size_t packed_bytes(WeightFormat format, int64_t rows, int64_t depth, Device device) {
  const int64_t stored_rows = device == Device::cpu ? (rows + kPanel - 1) / kPanel * kPanel : rows;
  const size_t bytes_each = format == WeightFormat::f32 ? 4 : 2;
  return static_cast<size_t>(stored_rows * depth) * bytes_each;
}

}  // namespace lockstep::kernels
