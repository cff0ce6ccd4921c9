#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

void rotate_row(float* x, int64_t heads, int64_t half, const float* cosines, const float* sines, float direction) {
  const Row16 sign = set16(direction), minus = set16(-1.0f);
  for_row16(half, [&](int64_t i, auto lanes) {
    const Row16 c = lanes.load(cosines + i), s = mul(sign, lanes.load(sines + i)), minus_s = mul(minus, s);
    for (int64_t h = 0; h < heads; ++h) {
      float* const low = x + h * 2 * half + i;
      const Row16 a = lanes.load(low), b = lanes.load(low + half);
      lanes.store(fma(a, c, mul(b, minus_s)), low);
      lanes.store(fma(b, c, mul(a, s)), low + half);
    }
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(rotate_row);

namespace cpu {

void rope(Tensor x, int64_t heads, std::span<const int32_t> positions, const RopeTable& table, int direction,
          Stream& stream) {
  const auto rotate_row = LOCKSTEP_DISPATCH(stream, rotate_row);
  split_rows(stream, x.shape[0], heads * 2 * table.half, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = positions[static_cast<size_t>(t)] * table.half;
      rotate_row(x.row(t), heads, table.half, table.cos() + at, table.sin() + at, static_cast<float>(direction));
    }
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
