#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// exp(-z) may be infinite; the quotient is then a clean 0.
HWY_INLINE Row16 one_plus_exp_minus(Row16 z) {
  return add(set16(1.0f), exp16(sub(set16(0.0f), z)));
}

void swiglu_row(float* y, const float* gate_up, int64_t width) {
  for_row16(width, [&](int64_t i, auto lanes) {
    const Row16 z = lanes.load(gate_up + i);
    lanes.store(mul(div(z, one_plus_exp_minus(z)), lanes.load(gate_up + width + i)), y + i);
  });
}

void swiglu_grad_row(float* d_gate_up, const float* dy, const float* gate_up, int64_t width) {
  const Row16 one = set16(1.0f);
  for_row16(width, [&](int64_t i, auto lanes) {
    const Row16 z = lanes.load(gate_up + i), up = lanes.load(gate_up + width + i), g = lanes.load(dy + i);
    const Row16 sigmoid = div(one, one_plus_exp_minus(z));
    const Row16 slope = mul(sigmoid, fma(z, sub(one, sigmoid), one));
    lanes.store(mul(mul(g, up), slope), d_gate_up + i);
    lanes.store(mul(g, mul(z, sigmoid)), d_gate_up + width + i);
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(swiglu_row);
HWY_EXPORT(swiglu_grad_row);

namespace cpu {

void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, swiglu_row);
  split_rows(stream, y.shape[0], y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(y.row(t), gate_up.row(t), y.shape[1]);
  });
}

void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream) {
  const auto row = LOCKSTEP_DISPATCH(stream, swiglu_grad_row);
  split_rows(stream, dy.shape[0], dy.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(d_gate_up.row(t), dy.row(t), gate_up.row(t), dy.shape[1]);
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
