#include <cmath>
#include <vector>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// lerp_ is one fused multiply-add in PyTorch's vector code; addcmul_ and addcdiv_ round after every operation.
void adamw_range(float* w_new, const float* w, float* m, float* v, const float* grad, int64_t count,
                 const cpu::AdamWScalars& s) {
  for_row16(count, [&](int64_t i, auto lanes) {
    const Row16 g = mul(lanes.load(grad + i), set16(s.grad_scale)), m_old = lanes.load(m + i);
    const Row16 m_new = fma(set16(s.one_minus_beta1), sub(g, m_old), m_old);
    const Row16 v_new = add(mul(lanes.load(v + i), set16(s.beta2)), mul(mul(set16(s.one_minus_beta2), g), g));
    const Row16 spread = add(div(sqrt(v_new), set16(s.bias2_sqrt)), set16(s.eps));
    const Row16 decayed = mul(lanes.load(w + i), set16(s.decay));
    lanes.store(m_new, m + i);
    lanes.store(v_new, v + i);
    lanes.store(add(decayed, div(mul(set16(s.minus_step_size), m_new), spread)), w_new + i);
  });
}

double squares_of_block(const float* x, int64_t count) {
  using F64 = hn::CappedTag<double, 16>;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(F64()));
  const hn::Rebind<float, F64> narrow;
  hn::Vec<F64> sums[16 / kWide];
  for (auto& sum : sums) sum = hn::Zero(F64());
  for_row16(count, [&](int64_t i, auto lanes) {
    HWY_ALIGN float piece[16];
    store16(lanes.load(x + i), piece);
    for (int k = 0; k < 16 / kWide; ++k) {
      const auto wide = hn::PromoteTo(F64(), hn::Load(narrow, piece + k * kWide));
      sums[k] = hn::MulAdd(wide, wide, sums[k]);
    }
  });
  HWY_ALIGN double lane[16];
  for (int k = 0; k < 16 / kWide; ++k) hn::Store(sums[k], F64(), lane + k * kWide);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(adamw_range);
HWY_EXPORT(squares_of_block);

namespace cpu {

void adamw(Tensor w_new, ConstTensor w, Tensor m, Tensor v, ConstTensor grad, const AdamWStep& options,
           Stream& stream) {
  const double steps = static_cast<double>(options.step);
  const double bias1 = 1 - std::pow(options.beta1, steps), bias2 = 1 - std::pow(options.beta2, steps);
  const AdamWScalars scalars{.decay = static_cast<float>(1 - options.lr * options.weight_decay),
                             .beta2 = static_cast<float>(options.beta2),
                             .one_minus_beta1 = static_cast<float>(1 - options.beta1),
                             .one_minus_beta2 = static_cast<float>(1 - options.beta2),
                             .minus_step_size = static_cast<float>(-(options.lr / bias1)),
                             .bias2_sqrt = static_cast<float>(std::sqrt(bias2)),
                             .eps = static_cast<float>(options.eps),
                             .grad_scale = options.grad_scale};
  const auto range = LOCKSTEP_DISPATCH(stream, adamw_range);
  split_rows(stream, w.shape[0], 1, [&](int64_t begin, int64_t end) {
    range(w_new.f32() + begin, w.f32() + begin, m.f32() + begin, v.f32() + begin, grad.f32() + begin, end - begin,
          scalars);
  });
}

void round_to_working(Tensor working, ConstTensor w, Stream& stream) {
  auto* const to = static_cast<BFloat16*>(working.data);
  split_rows(stream, w.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = to_bf16(w.f32()[i]);
  });
}

void round_transposed(Tensor working, ConstTensor w, std::span<const FlatMatrix> matrices, Stream& stream) {
  auto* const to = static_cast<BFloat16*>(working.data);
  stream.parallel(static_cast<int64_t>(matrices.size()), [&](int64_t index, int) {
    const FlatMatrix& m = matrices[static_cast<size_t>(index)];
    for (int64_t c = 0; c < m.cols; ++c)
      for (int64_t r = 0; r < m.rows; ++r) to[m.offset + c * m.rows + r] = to_bf16(w.f32()[m.offset + r * m.cols + c]);
  });
}

double sum_of_squares(ConstTensor x, Stream& stream) {
  constexpr int64_t kBlock = 4096;
  const int64_t count = x.shape[0], blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> partial(static_cast<size_t>(blocks));
  const auto squares = LOCKSTEP_DISPATCH(stream, squares_of_block);
  split_rows(stream, blocks, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      partial[static_cast<size_t>(b)] = squares(x.f32() + b * kBlock, std::min(kBlock, count - b * kBlock));
  });
  double total = 0;
  for (double sum : partial) total += sum;
  return total;
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
