// Strips of matrices that lie row after row: the LoRA factors, and gradients' operands. Included once per target.

#if defined(LOCKSTEP_KERNELS_CPU_ROW_MAJOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_ROW_MAJOR_INL_H_
#undef LOCKSTEP_KERNELS_CPU_ROW_MAJOR_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_ROW_MAJOR_INL_H_
#endif

#include "kernels/cpu/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Strips of a row-major matrix [depth, columns]: in place where a tile can read them, else scaled or padded copies.
struct RowMajorStrips {
  using Load = LoadF32;
  static constexpr bool kRoom = true;
  const float* b;
  size_t stride;
  int64_t columns;
  float scale = 1;
  bool copy = false;

  StripView<float> strip(int64_t index, size_t begin, size_t count, float* room) const {
    const int64_t column = index * kStrip;
    const float* const from = b + begin * stride + column;
    const auto width = static_cast<size_t>(std::min<int64_t>(kStrip, columns - column));
    const size_t padded = width <= kNarrowStrip ? kNarrowStrip : kStrip;
    // A single strip is read down its rows; of several, short ones, the next are beside this one.
    constexpr size_t kStripsAhead = 4;
    const size_t ahead = columns <= kStrip ? kRowsAhead * stride : kStripsAhead * kStrip;
    if (width == padded && !copy && scale == 1) return {from, stride, ahead};
    for (size_t k = 0; k < count; ++k) {
      scale_row(from + k * stride, width, scale, room + k * kStrip);
      std::fill(room + k * kStrip + width, room + k * kStrip + padded, 0.0f);
    }
    return {room, kStrip};
  }
};

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
