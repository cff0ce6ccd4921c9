#include "kernels/linear_logprob.h"

#include "core/device.h"
#include "core/error.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"

namespace lockstep::kernels {
namespace {

void require_targets(std::span<const int32_t> targets, int64_t rows, const char* op) {
  if (static_cast<int64_t>(targets.size()) == rows) return;
  throw ShapeError({.what = "one target per row",
                    .where = std::string(op) + ": targets",
                    .got = std::to_string(targets.size()),
                    .wanted = std::to_string(rows)});
}

void require_sums(const ConstTensor& sums, int64_t rows, int64_t vocab, const char* op) {
  require_f32(sums, {rows, linear_logprob_sums(vocab)}, op, "sums");
  if (rows > 1 && sums.row_stride != sums[1])
    throw ShapeError({.what = "rows of sums follow each other",
                      .where = op,
                      .got = "a row every " + std::to_string(sums.row_stride) + " floats",
                      .wanted = std::to_string(sums[1])});
}

// Vectors of 16 bytes.
void require_aligned(const ConstTensor& tensor, const char* op, const char* name) {
  if (reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && tensor.row_stride % 8 == 0) return;
  throw ShapeError({.what = "op argument is not aligned",
                    .where = std::string(op) + ": " + name,
                    .got = "a row every " + std::to_string(tensor.row_stride) + " elements",
                    .wanted = "rows that begin at multiples of 16 bytes"});
}

}  // namespace

bool makes_linear_logprob(int64_t vocab, int64_t depth, Device device) {
  static const bool usable = cuda_unusable().empty();
  return device == Device::cuda && usable && cuda::makes_linear_logprob() && vocab % 8 == 0 && depth % 8 == 0;
}

void linear_logprob_forward(const LinearLogprob& call, Stream& stream) {
  constexpr const char* kOp = "linear_logprob_forward";
  const int64_t rows = call.x[0], vocab = call.weight.rows;
  if (!makes_linear_logprob(vocab, call.weight.depth, stream.device()))
    throw DeviceError({.what = "log-probs and logits are not made by one launch here", .where = kOp});
  require_tensor(call.x, activation_dtype(stream.device()), {rows, call.weight.depth}, kOp, "x");
  require_targets(call.targets, rows, kOp);
  for (const auto& [tensor, name] :
       {std::pair{call.logprob, "logprob"}, {call.lse, "lse"}, {call.target_z, "target_z"}})
    require_f32(tensor, {rows}, kOp, name);
  if (!call.entropy.empty()) require_f32(call.entropy, {rows}, kOp, "entropy");
  require_sums(call.sums, rows, vocab, kOp);
  require_aligned(call.x, kOp, "x");
  if (call.weights.empty()) return cuda::linear_logprob_forward(call, stream);
  require_tensor(call.weights, activation_dtype(stream.device()), {rows, vocab}, kOp, "weights");
  require_aligned(call.weights, kOp, "weights");
  cuda::linear_logprob_forward(call, stream);
}

void linear_logprob_backward(const LinearLogprobBackward& call, Stream& stream) {
  constexpr const char* kOp = "linear_logprob_backward";
  const int64_t rows = call.weights[0], vocab = call.weights[1];
  require_tensor(call.weights, activation_dtype(stream.device()), {rows, vocab}, kOp, "weights");
  require_sums(call.sums, rows, vocab, kOp);
  require_aligned(call.weights, kOp, "weights");
  require_targets(call.targets, rows, kOp);
  for (const auto& [tensor, name] :
       {std::pair{call.target_z, "target_z"}, {call.lse, "lse"}, {call.d_logprob, "d_logprob"}})
    require_f32(tensor, {rows}, kOp, name);
  if (!call.d_entropy.empty()) {
    require_f32(call.d_entropy, {rows}, kOp, "d_entropy");
    require_f32(call.entropy, {rows}, kOp, "entropy");
  }
  if (!makes_linear_logprob(vocab, 8, stream.device()))
    throw DeviceError({.what = "gradients of logits that were not stored are not made here", .where = kOp});
  cuda::linear_logprob_backward(call, stream);
}

}  // namespace lockstep::kernels
