#include "checkpoint/gguf/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/half.h"

namespace lockstep::checkpoint {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie in memory");

namespace {

constexpr size_t kQ8BlockBytes = sizeof(uint16_t) + static_cast<size_t>(kQ8BlockValues);

bool is_finite(Float16 x) {
  return (x.bits & 0x7c00u) != 0x7c00u;
}

bool encode_f16(std::byte* out, std::span<const float> row) {
  bool fits = true;
  for (const float value : row) {
    const Float16 half = to_f16(value);
    fits &= is_finite(half) || !std::isfinite(value);
    std::memcpy(out, &half.bits, sizeof(half.bits));
    out += sizeof(half.bits);
  }
  return fits;
}

bool encode_bf16(std::byte* out, std::span<const float> row) {
  bool fits = true;
  for (const float value : row) {
    const BFloat16 half = to_bf16(value);
    fits &= std::isfinite(to_f32(half)) || !std::isfinite(value);
    std::memcpy(out, &half.bits, sizeof(half.bits));
    out += sizeof(half.bits);
  }
  return fits;
}

bool encode_q8_block(std::byte* out, const float* values) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < kQ8BlockValues; ++i) {
    finite &= std::isfinite(values[i]);
    largest = std::max(largest, std::abs(values[i]));
  }
  const float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
  const Float16 stored = to_f16(d);
  if (!finite || !is_finite(stored)) return false;
  if (!std::isfinite(inverse)) {  // values far below the smallest f16 are zeros
    std::memset(out, 0, kQ8BlockBytes);
    return true;
  }
  std::memcpy(out, &stored.bits, sizeof(stored.bits));
  out += sizeof(stored.bits);
  for (int64_t i = 0; i < kQ8BlockValues; ++i)
    out[i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
  return true;
}

}  // namespace

bool gguf_row_fits(GgufType type, int64_t values) {
  return type != GgufType::q8_0 || values % kQ8BlockValues == 0;
}

size_t gguf_row_bytes(GgufType type, int64_t values) {
  const auto count = static_cast<size_t>(values);
  switch (type) {
    case GgufType::f32: return count * sizeof(float);
    case GgufType::f16:
    case GgufType::bf16: return count * sizeof(uint16_t);
    case GgufType::q8_0: return count / kQ8BlockValues * kQ8BlockBytes;
  }
  return 0;
}

bool gguf_encode_row(void* out, GgufType type, std::span<const float> row) {
  auto* bytes = static_cast<std::byte*>(out);
  switch (type) {
    case GgufType::f32: std::memcpy(out, row.data(), row.size_bytes()); return true;
    case GgufType::f16: return encode_f16(bytes, row);
    case GgufType::bf16: return encode_bf16(bytes, row);
    case GgufType::q8_0: break;
  }
  bool fits = true;
  for (size_t i = 0; i < row.size(); i += kQ8BlockValues, bytes += kQ8BlockBytes)
    fits &= encode_q8_block(bytes, row.data() + i);
  return fits;
}

}  // namespace lockstep::checkpoint
