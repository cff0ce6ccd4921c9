#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

void add_row(float* y, const float* x, int64_t width) {
  for_row16(width, [&](int64_t i, auto lanes) { lanes.store(add(lanes.load(y + i), lanes.load(x + i)), y + i); });
}

void dropout_row(float* y, const float* x, int64_t width, float p, uint64_t key, Counter counter, bool accumulate) {
  const Row16 keep_share = set16(1.0f - p);
  const uint32_t module = counter[3];
  for_row16(width, [&](int64_t i, auto lanes) {
    // +1 keeps, -1 drops.
    HWY_ALIGN float choice[16];
    for (int group = 0; group < 4; ++group) {
      counter[3] = module | static_cast<uint32_t>(i / 4 + group);
      const auto bits = philox(key, counter);
      for (int k = 0; k < 4; ++k) choice[4 * group + k] = uniform01(bits[k]) >= p ? 1.0f : -1.0f;
    }
    const Row16 kept = where_positive(load16(choice), div(lanes.load(x + i), keep_share));
    lanes.store(accumulate ? add(lanes.load(y + i), kept) : kept, y + i);
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(add_row);
HWY_EXPORT(dropout_row);

namespace cpu {

void add(Tensor y, ConstTensor x, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, add_row);
  split_rows(stream, y.shape[0], y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(y.row(t), x.row(t), y.shape[1]);
  });
}

void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, dropout_row);
  split_rows(stream, y.shape[0], y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto at = static_cast<size_t>(t);
      const Counter first = {counter.step, static_cast<uint32_t>(counter.sample[at]),
                             static_cast<uint32_t>(counter.position[at]), counter.module << 16};
      row(y.row(t), x.row(t), y.shape[1], p, counter.key, first, accumulate);
    }
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
