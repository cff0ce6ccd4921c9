#include "kernels/value_head.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/value_head.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

float dot_row(const float* x, const float* weight, int64_t width) {
  Row16 sums = set16(0.0f);
  for_row16(width, [&](int64_t i, auto lanes) { sums = fma(lanes.load(x + i), lanes.load(weight + i), sums); });
  return sum16(sums);
}

void scaled_row(float* to, const float* from, float factor, int64_t width) {
  const Row16 scale = set16(factor);
  for_row16(width, [&](int64_t i, auto lanes) { lanes.store(mul(lanes.load(from + i), scale), to + i); });
}

void add_scaled_row(float* to, const float* from, float factor, int64_t width) {
  const Row16 scale = set16(factor);
  for_row16(width,
            [&](int64_t i, auto lanes) { lanes.store(fma(lanes.load(from + i), scale, lanes.load(to + i)), to + i); });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(dot_row);
HWY_EXPORT(scaled_row);
HWY_EXPORT(add_scaled_row);

namespace cpu {

void value_head_forward(Tensor v, ConstTensor x, ConstTensor weight, ConstTensor bias, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, dot_row);
  split_rows(stream, x.shape[0], x.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) v.f32()[n] = row(x.row(n), weight.f32(), x.shape[1]) + bias.f32()[0];
  });
}

void value_head_backward(Tensor dx, ConstTensor dv, ConstTensor weight, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, scaled_row);
  split_rows(stream, dx.shape[0], dx.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) row(dx.row(n), weight.f32(), dv.f32()[n], dx.shape[1]);
  });
}

// On one thread: a few rows of the model's width beside a whole backward pass.
void value_head_gradient(Tensor d_weight, Tensor d_bias, ConstTensor dv, ConstTensor x, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, add_scaled_row);
  for (int64_t n = 0; n < x.shape[0]; ++n) {
    row(d_weight.f32(), x.row(n), dv.f32()[n], x.shape[1]);
    d_bias.f32()[0] += dv.f32()[n];
  }
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif
