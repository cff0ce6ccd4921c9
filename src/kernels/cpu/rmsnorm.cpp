#include <cmath>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rmsnorm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

void norm_row(float* y, float* rstd_out, const float* x, const float* weight, float eps, int64_t width) {
  Row16 squares = set16(0.0f);
  for_row16(width, [&](int64_t i, auto lanes) {
    const Row16 a = lanes.load(x + i);
    squares = fma(a, a, squares);
  });
  const float rstd = 1.0f / std::sqrt(sum16(squares) / static_cast<float>(width) + eps);
  if (rstd_out) *rstd_out = rstd;
  const Row16 scale = set16(rstd);
  for_row16(width, [&](int64_t i, auto lanes) {
    lanes.store(mul(mul(lanes.load(x + i), scale), lanes.load(weight + i)), y + i);
  });
}

void norm_grad_row(float* dx, const float* dy, const float* x, const float* weight, float rstd, bool accumulate,
                   int64_t width) {
  Row16 dots = set16(0.0f);
  for_row16(width, [&](int64_t i, auto lanes) {
    dots = fma(mul(lanes.load(dy + i), lanes.load(weight + i)), lanes.load(x + i), dots);
  });
  const Row16 pull = set16(-(rstd * rstd * rstd / static_cast<float>(width) * sum16(dots)));
  const Row16 scale = set16(rstd);
  for_row16(width, [&](int64_t i, auto lanes) {
    const Row16 direct = mul(scale, mul(lanes.load(dy + i), lanes.load(weight + i)));
    const Row16 grad = fma(pull, lanes.load(x + i), direct);
    lanes.store(accumulate ? add(lanes.load(dx + i), grad) : grad, dx + i);
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(norm_row);
HWY_EXPORT(norm_grad_row);

namespace cpu {

void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream) {
  const RowView from(x), to(y);
  float* const saved = rstd.empty() ? nullptr : rstd.f32();
  const auto norm_row = LOCKSTEP_DISPATCH(stream, norm_row);
  split_rows(stream, x.elements() / from.width, from.width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      norm_row(to.row(i), saved ? saved + i : nullptr, from.row(i), weight.f32(), eps, from.width);
  });
}

void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream) {
  const RowView input(x), grad(dy), out(dx);
  const auto grad_row = LOCKSTEP_DISPATCH(stream, norm_grad_row);
  split_rows(stream, x.elements() / input.width, input.width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      grad_row(out.row(i), grad.row(i), input.row(i), weight.f32(), rstd.f32()[i], accumulate, input.width);
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
