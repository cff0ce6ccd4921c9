#include <cmath>
#include <limits>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/logprob.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

float largest_logit(const float* logits, int64_t vocab, float inv_temperature) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const Row16 scale = set16(inv_temperature);
  Row16 top = set16(kLowest);
  for_row16(vocab,
            [&](int64_t i, auto lanes) { top = max(top, lanes.keep_or(mul(lanes.load(logits + i), scale), kLowest)); });
  return max16(top);
}

// Sum of e = exp(z - m), and of e (z - m) when the entropy is wanted; e itself into `exps` unless null.
void exp_sums(float* exps, float* sum, float* weighted, const float* logits, int64_t vocab, float inv_temperature,
              float largest) {
  const Row16 scale = set16(inv_temperature), top = set16(largest);
  Row16 total = set16(0.0f), moment = set16(0.0f);
  for_row16(vocab, [&](int64_t i, auto lanes) {
    const Row16 shifted = sub(mul(lanes.load(logits + i), scale), top);
    const Row16 e = lanes.keep_or(exp16(shifted), 0.0f);
    total = add(total, e);
    // A logit of -infinity has e = 0 and no say in the entropy; 0 * infinity would be NaN.
    if (weighted) moment = fma(e, where_positive(e, shifted), moment);
    if (exps) lanes.store(e, exps + i);
  });
  *sum = sum16(total);
  if (weighted) *weighted = sum16(moment);
}

HWY_INLINE Row16 logit_grad(Row16 logits, Row16 onehot, const cpu::LogprobGrad& g) {
  const Row16 above = sub(mul(logits, set16(g.inv_temperature)), set16(g.lse));
  const Row16 p = exp16(above);
  const Row16 surprise = where_positive(p, mul(p, add(above, set16(g.entropy))));
  const Row16 pull = mul(set16(g.d_logprob), sub(onehot, p));
  return mul(set16(g.inv_temperature), sub(pull, mul(set16(g.d_entropy), surprise)));
}

void logprob_grad_row(float* dlogits, const float* logits, int64_t vocab, int64_t target, const cpu::LogprobGrad& g) {
  HWY_ALIGN float at_target[16];
  store16(logit_grad(set16(logits[target]), set16(1.0f), g), at_target);
  const Row16 none = set16(0.0f);
  for_row16(vocab,
            [&](int64_t i, auto lanes) { lanes.store(logit_grad(lanes.load(logits + i), none, g), dlogits + i); });
  dlogits[target] = at_target[0];
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(largest_logit);
HWY_EXPORT(exp_sums);
HWY_EXPORT(logprob_grad_row);

namespace cpu {

void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream) {
  const int64_t vocab = logits.shape[1];
  const auto largest_logit = LOCKSTEP_DISPATCH(stream, largest_logit);
  const auto exp_sums = LOCKSTEP_DISPATCH(stream, exp_sums);
  split_rows(stream, logits.shape[0], vocab, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t target = targets[static_cast<size_t>(t)];
      float sum = 1, weighted = 0, largest = 0, score = 0;
      if (target >= 0) {
        const float* row = logits.row(t);
        largest = largest_logit(row, vocab, inv_temperature);
        exp_sums(nullptr, &sum, entropy.empty() ? nullptr : &weighted, row, vocab, inv_temperature, largest);
        score = row[target] * inv_temperature;
      }
      // Double from here on: log-probabilities near 0 keep their digits however large the logits are.
      const double log_sum = std::log(static_cast<double>(sum));
      logprob.f32()[t] = static_cast<float>(static_cast<double>(score) - largest - log_sum);
      lse.f32()[t] = static_cast<float>(largest + log_sum);
      if (!entropy.empty()) entropy.f32()[t] = static_cast<float>(log_sum - static_cast<double>(weighted) / sum);
    }
  });
}

void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream) {
  const int64_t vocab = logits.shape[1];
  const auto grad_row = LOCKSTEP_DISPATCH(stream, logprob_grad_row);
  split_rows(stream, logits.shape[0], vocab, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t target = targets[static_cast<size_t>(t)];
      if (target < 0) {
        std::fill_n(dlogits.row(t), vocab, 0.0f);
        continue;
      }
      LogprobGrad grad{.inv_temperature = inv_temperature, .lse = lse.f32()[t], .d_logprob = d_logprob.f32()[t]};
      if (!d_entropy.empty()) {
        grad.entropy = entropy.f32()[t];
        grad.d_entropy = d_entropy.f32()[t];
      }
      grad_row(dlogits.row(t), logits.row(t), vocab, target, grad);
    }
  });
}

void softmax_unnormalized(Tensor probabilities, Tensor sums, ConstTensor logits, float inv_temperature,
                          Stream& stream) {
  const int64_t vocab = logits.shape[1];
  const auto largest_logit = LOCKSTEP_DISPATCH(stream, largest_logit);
  const auto exp_sums = LOCKSTEP_DISPATCH(stream, exp_sums);
  split_rows(stream, logits.shape[0], vocab, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float largest = largest_logit(logits.row(t), vocab, inv_temperature);
      exp_sums(probabilities.row(t), sums.f32() + t, nullptr, logits.row(t), vocab, inv_temperature, largest);
    }
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
