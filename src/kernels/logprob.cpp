#include "kernels/logprob.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"

namespace lockstep::kernels {
namespace {

void require_logits(const ConstTensor& logits, const char* op) {
  if (logits.rank != 2 || logits.shape[1] < 1)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": logits",
                      .got = shape_text(logits),
                      .wanted = "f32 [T, V]"});
  require_f32(logits, {logits.shape[0], logits.shape[1]}, op, "logits");
}

void require_targets(std::span<const int32_t> targets, const ConstTensor& logits, const char* op,
                     const Stream& stream) {
  const std::string where = std::string(op) + ": targets";
  if (static_cast<int64_t>(targets.size()) != logits.shape[0])
    throw ShapeError({.what = "one target per row",
                      .where = where,
                      .got = std::to_string(targets.size()),
                      .wanted = std::to_string(logits.shape[0])});
  if (stream.device() == Device::cuda) return;
  for (size_t t = 0; t < targets.size(); ++t)
    if (targets[t] < -1 || targets[t] >= logits.shape[1])
      throw DataError({.what = "target outside the vocabulary",
                       .where = where + ", row " + std::to_string(t),
                       .got = std::to_string(targets[t]),
                       .wanted = "0 .. " + std::to_string(logits.shape[1] - 1) + ", or -1 to skip the row"});
}

}  // namespace

void logprob_forward(Tensor logprob, Tensor entropy, Tensor lse, ConstTensor logits, std::span<const int32_t> targets,
                     float inv_temperature, Stream& stream) {
  constexpr const char* kOp = "logprob_forward";
  require_logits(logits, kOp);
  require_targets(targets, logits, kOp, stream);
  require_f32(logprob, {logits.shape[0]}, kOp, "logprob");
  require_f32(lse, {logits.shape[0]}, kOp, "lse");
  if (!entropy.empty()) require_f32(entropy, {logits.shape[0]}, kOp, "entropy");
  if (stream.device() == Device::cuda)
    return cuda::logprob_forward(logprob, entropy, lse, logits, targets, inv_temperature, stream);
  cpu::logprob_forward(logprob, entropy, lse, logits, targets, inv_temperature, stream);
}

void logprob_backward(Tensor dlogits, ConstTensor logits, std::span<const int32_t> targets, float inv_temperature,
                      ConstTensor lse, ConstTensor entropy, ConstTensor d_logprob, ConstTensor d_entropy,
                      Stream& stream) {
  constexpr const char* kOp = "logprob_backward";
  require_logits(logits, kOp);
  require_targets(targets, logits, kOp, stream);
  require_tensor(dlogits, activation_dtype(stream.device()), {logits.shape[0], logits.shape[1]}, kOp, "dlogits");
  require_f32(lse, {logits.shape[0]}, kOp, "lse");
  require_f32(d_logprob, {logits.shape[0]}, kOp, "d_logprob");
  if (!d_entropy.empty()) {
    require_f32(d_entropy, {logits.shape[0]}, kOp, "d_entropy");
    require_f32(entropy, {logits.shape[0]}, kOp, "entropy");
  }
  if (stream.device() == Device::cuda)
    return cuda::logprob_backward(dlogits, logits, targets, inv_temperature, lse, entropy, d_logprob, d_entropy,
                                  stream);
  cpu::logprob_backward(dlogits, logits, targets, inv_temperature, lse, entropy, d_logprob, d_entropy, stream);
}

void softmax_unnormalized(Tensor probabilities, Tensor sums, ConstTensor logits, float inv_temperature,
                          Stream& stream) {
  constexpr const char* kOp = "softmax_unnormalized";
  require_logits(logits, kOp);
  require_f32(probabilities, {logits.shape[0], logits.shape[1]}, kOp, "probabilities");
  require_f32(sums, {logits.shape[0]}, kOp, "sums");
  cpu::softmax_unnormalized(probabilities, sums, logits, inv_temperature, stream);
}

}  // namespace lockstep::kernels
