#include "kernels/token_logprobs.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/token_logprobs.h"
#include "kernels/logprob.h"

namespace lockstep::kernels {
namespace {

void require_tokens(std::span<const int32_t> tokens, const ConstTensor& values, const ConstTensor& logits,
                    const char* op, const Stream& stream) {
  if (logits.rank != 2 || values.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = op,
                      .got = shape_text(values) + " of " + shape_text(logits),
                      .wanted = "f32 [R, K] of [R, V]"});
  require_f32(logits, {logits.shape[0], logits.shape[1]}, op, "logits");
  require_f32(values, {logits.shape[0], values.shape[1]}, op, "logprobs");
  if (static_cast<int64_t>(tokens.size()) != values.shape[0] * values.shape[1])
    throw ShapeError({.what = "wrong number of candidate tokens",
                      .where = op,
                      .got = std::to_string(tokens.size()),
                      .wanted = std::to_string(values.shape[0] * values.shape[1])});
  if (stream.device() == Device::cuda) return;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < -1 || tokens[i] >= logits.shape[1])
      throw DataError({.what = "a candidate token lies outside the vocabulary",
                       .where = std::string(op) + ": tokens, entry " + std::to_string(i),
                       .got = std::to_string(tokens[i]),
                       .wanted = "0 .. " + std::to_string(logits.shape[1] - 1) + ", or -1 for none"});
}

}  // namespace

void token_logprobs_forward(Tensor logprobs, ConstTensor logits, ConstTensor lse, std::span<const int32_t> tokens,
                            float inv_temperature, Stream& stream) {
  constexpr const char* kOp = "token_logprobs_forward";
  require_tokens(tokens, logprobs, logits, kOp, stream);
  require_f32(lse, {logits.shape[0]}, kOp, "lse");
  (stream.device() == Device::cuda ? cuda::token_logprobs_forward : cpu::token_logprobs_forward)(
      logprobs, logits, lse, tokens, inv_temperature, stream);
}

void token_logprobs_backward(const TokenLogprobsBackward& call, Stream& stream) {
  constexpr const char* kOp = "token_logprobs_backward";
  require_tokens(call.tokens, call.d_token_logprobs, call.logits, kOp, stream);
  const int64_t rows = call.logits.shape[0], count = call.d_token_logprobs.shape[1];
  require_f32(call.scratch, {count + 2, rows}, kOp, "scratch");
  require_f32(call.lse, {rows}, kOp, "lse");
  require_f32(call.d_logprob, {rows}, kOp, "d_logprob");
  if (static_cast<int64_t>(call.targets.size()) != rows)
    throw ShapeError({.what = "one target per row",
                      .where = std::string(kOp) + ": targets",
                      .got = std::to_string(call.targets.size()),
                      .wanted = std::to_string(rows)});
  // dlogits may lie in the memory of logits: the entries of target and candidates are worked out before the row is
  // written, and put in place afterwards.
  const bool gpu = stream.device() == Device::cuda;
  (gpu ? cuda::prepare_token_gradients : cpu::prepare_token_gradients)(call, stream);
  const ConstTensor total(call.scratch.f32(), DType::f32, {rows});
  logprob_backward(call.dlogits, call.logits, call.targets, call.inv_temperature, call.lse, call.entropy, total,
                   call.d_entropy, stream);
  (gpu ? cuda::place_token_gradients : cpu::place_token_gradients)(call, stream);
}

}  // namespace lockstep::kernels
