#include "core/half.h"

#include <bit>
#include <cmath>

namespace lockstep {

Float16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7c00u | (magnitude >> 13 & 0x3ffu))};
  if (magnitude < 0x38800000u) {
    // Below the smallest normal, 2^-14: a multiple of 2^-24, which may round up to that normal.
    const float scaled = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(scaled))};
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  if (rounded >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace lockstep
