#include <cmath>

#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels::cpu {
namespace {

// Of entry `token` of row r: its logit's gradient, from double to f32.
float entry_gradient(const TokenLogprobsBackward& call, int64_t r, int32_t token, double total) {
  const int64_t count = call.d_token_logprobs.shape[1];
  double own = call.targets[static_cast<size_t>(r)] == token ? call.d_logprob.f32()[r] : 0.0f;
  for (int64_t i = 0; i < count; ++i)
    if (call.tokens[static_cast<size_t>(r * count + i)] == token) own += call.d_token_logprobs.row(r)[i];
  const double above = call.logits.row(r)[token] * call.inv_temperature - call.lse.f32()[r], p = std::exp(above);
  double gradient = own - total * p;
  if (!call.d_entropy.empty() && p > 0) gradient -= call.d_entropy.f32()[r] * p * (above + call.entropy.f32()[r]);
  return static_cast<float>(call.inv_temperature * gradient);
}

}  // namespace

void token_logprobs_forward(Tensor logprobs, ConstTensor logits, ConstTensor lse, std::span<const int32_t> tokens,
                            float inv_temperature, Stream& stream) {
  const int64_t count = logprobs.shape[1];
  stream.parallel(logits.shape[0], [&](int64_t r, int) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = tokens[static_cast<size_t>(r * count + i)];
      logprobs.row(r)[i] = token < 0 ? 0.0f : logits.row(r)[token] * inv_temperature - lse.f32()[r];
    }
  });
}

void prepare_token_gradients(const TokenLogprobsBackward& call, Stream& stream) {
  const int64_t count = call.d_token_logprobs.shape[1];
  stream.parallel(call.logits.shape[0], [&](int64_t r, int) {
    const int32_t target = call.targets[static_cast<size_t>(r)];
    if (target < 0) return;
    double total = call.d_logprob.f32()[r];
    for (int64_t i = 0; i < count; ++i)
      if (call.tokens[static_cast<size_t>(r * count + i)] >= 0) total += call.d_token_logprobs.row(r)[i];
    call.scratch.row(0)[r] = static_cast<float>(total);
    call.scratch.row(1)[r] = entry_gradient(call, r, target, total);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = call.tokens[static_cast<size_t>(r * count + i)];
      if (token >= 0) call.scratch.row(2 + i)[r] = entry_gradient(call, r, token, total);
    }
  });
}

void place_token_gradients(const TokenLogprobsBackward& call, Stream& stream) {
  const int64_t count = call.d_token_logprobs.shape[1];
  stream.parallel(call.logits.shape[0], [&](int64_t r, int) {
    const int32_t target = call.targets[static_cast<size_t>(r)];
    if (target < 0) return;
    Tensor dlogits = call.dlogits;
    dlogits.row(r)[target] = call.scratch.row(1)[r];
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = call.tokens[static_cast<size_t>(r * count + i)];
      if (token >= 0) dlogits.row(r)[token] = call.scratch.row(2 + i)[r];
    }
  });
}

}  // namespace lockstep::kernels::cpu
