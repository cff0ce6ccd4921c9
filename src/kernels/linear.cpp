#include "kernels/linear.h"

#include "core/error.h"
#include "kernels/cpu/matrix_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/lora_checks.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels {
namespace {

// Returns T.
int64_t require_rows(const ConstTensor& rows, const char* op, const char* argument) {
  if (rows.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": " + argument,
                      .got = shape_text(rows),
                      .wanted = "a matrix"});
  return rows[0];
}

void require_linear(const Tensor& y, const ConstTensor& x, const PackedWeight& weight, const ConstTensor& bias,
                    const ConstTensor& residual, const char* op, const Stream& stream) {
  const int64_t tokens = require_rows(x, op, "x");
  const DType dtype = activation_dtype(stream.device());
  require_tensor(x, dtype, {tokens, weight.depth}, op, "x");
  require_tensor(y, y.dtype == DType::f32 ? DType::f32 : dtype, {tokens, weight.rows}, op, "y");
  if (!residual.empty()) require_tensor(residual, y.dtype, {tokens, weight.rows}, op, "residual");
  if (!bias.empty()) require_f32(bias, {weight.rows}, op, "bias");
}

// What the product reads, in `norm` if the input has a norm.
ConstTensor normed(Tensor norm, const LinearInput& input, Stream& stream) {
  if (input.norm_weight.empty()) return input.x;
  rmsnorm_forward(norm, {}, input.x, input.norm_weight, input.norm_eps, stream);
  return norm;
}

// A product with its norm inside checks what the norm would have.
void require_norm(const LinearInput& input, int64_t depth, const char* op) {
  if (!input.norm_weight.empty()) require_f32(input.norm_weight, {depth}, op, "norm weight");
}

}  // namespace

void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, ConstTensor residual,
                    Stream& stream) {
  require_linear(y, x, weight, bias, residual, "linear_forward", stream);
  if (stream.device() == Device::cuda) return cuda::linear_forward(y, x, weight, bias, residual, stream);
  cpu::linear_forward(y, x, weight, {.bias = bias, .residual = residual}, stream);
}

namespace {

void require_adapted(const Tensor& y, const Tensor& h, const ConstTensor& x, const PackedWeight& weight,
                     const ConstTensor& bias, const ConstTensor& residual, std::span<const LoraPair> pairs,
                     const char* op, const Stream& stream) {
  require_linear(y, x, weight, bias, residual, op, stream);
  require_pairs(pairs, op, stream);
  require_input(x, pairs, op, stream);
  require_inner(h, x[0], pairs, op, stream);
  require_output(y, pairs, op, stream);
}

}  // namespace

PendingDelta adapted_linear_begin(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                                  ConstTensor residual, std::span<const LoraPair> pairs, Stream& stream) {
  require_adapted(y, h, x, weight, bias, residual, pairs, "adapted_linear_begin", stream);
  const PendingDelta rest{.h = h, .pairs = pairs};
  if (stream.device() == Device::cuda) {
    const auto made = cuda::adapted_linear_begin(y, h, x, weight, bias, residual, pairs, stream);
    if (made == cuda::AdaptedPart::all) return {};
    if (made == cuda::AdaptedPart::inner) return rest;
  }
  stream.beside([&] { lora_shrink(h, x, pairs, stream); },
                [&] { linear_forward(y, x, weight, bias, residual, stream); });
  return rest;
}

void adapted_swiglu_forward(Tensor act, Tensor gate_up, Tensor h, ConstTensor x, const PackedWeight& weight,
                            ConstTensor bias, std::span<const LoraPair> pairs, Stream& stream) {
  constexpr const char* kOp = "adapted_swiglu_forward";
  require_adapted(gate_up, h, x, weight, bias, {}, pairs, kOp, stream);
  require_tensor(act, activation_dtype(stream.device()), {x[0], weight.rows / 2}, kOp, "act");
  if (stream.device() == Device::cuda && cuda::adapted_swiglu_forward(act, h, x, weight, bias, pairs, stream)) return;
  swiglu_forward(act, gate_up, adapted_linear_begin(gate_up, h, x, weight, bias, {}, pairs, stream), false, stream);
}

void adapted_linear_forward(Tensor y, Tensor h, ConstTensor x, const PackedWeight& weight, ConstTensor bias,
                            ConstTensor residual, std::span<const LoraRows> adapters, Stream& stream) {
  constexpr const char* kOp = "adapted_linear_forward";
  if (stream.device() == Device::cuda)
    throw DeviceError({.what = "rows of many adapters are tiles on a GPU", .where = kOp});
  require_linear(y, x, weight, bias, residual, kOp, stream);
  require_f32(h, {x[0], h.shape[1]}, kOp, "h");
  int64_t row = 0;
  for (const LoraRows& part : adapters) {
    require_pairs(part.pairs, kOp, stream);
    require_input(x, part.pairs, kOp, stream);
    require_output(y, part.pairs, kOp, stream);
    if (part.row_begin < row || part.rows < 0 || part.row_begin + part.rows > x[0] || total_rank(part.pairs) > h[1])
      throw ShapeError({.what = "an adapter's rows are not rows of the product",
                        .where = kOp,
                        .got = std::to_string(part.rows) + " rows from " + std::to_string(part.row_begin) +
                               " of total rank " + std::to_string(total_rank(part.pairs)),
                        .wanted = "rows from " + std::to_string(row) + " to " + std::to_string(x[0]) +
                                  ", total rank at most " + std::to_string(h[1])});
    row = part.row_begin + part.rows;
  }
  cpu::linear_forward(y, x, weight, {.bias = bias, .residual = residual, .adapters = adapters, .h = h}, stream);
}

void normed_linear_forward(Tensor y, Tensor norm, const LinearInput& input, const PackedWeight& weight,
                           ConstTensor bias, Stream& stream) {
  constexpr const char* kOp = "normed_linear_forward";
  require_linear(y, input.x, weight, bias, {}, kOp, stream);
  require_norm(input, weight.depth, kOp);
  if (stream.device() == Device::cuda && cuda::normed_linear_forward(y, input, weight, bias, false, stream)) return;
  linear_forward(y, normed(norm, input, stream), weight, bias, {}, stream);
}

void normed_swiglu_forward(Tensor act, Tensor gate_up, Tensor norm, const LinearInput& input,
                           const PackedWeight& weight, ConstTensor bias, Stream& stream) {
  constexpr const char* kOp = "normed_swiglu_forward";
  require_linear(gate_up, input.x, weight, bias, {}, kOp, stream);
  require_norm(input, weight.depth, kOp);
  require_tensor(act, activation_dtype(stream.device()), {input.x[0], weight.rows / 2}, kOp, "act");
  const bool cuda = stream.device() == Device::cuda;
  if (cuda && cuda::normed_linear_forward(act, input, weight, bias, true, stream)) return;
  const LinearInput rest{.x = normed(norm, input, stream)};
  if (cuda && !input.norm_weight.empty() && cuda::normed_linear_forward(act, rest, weight, bias, true, stream)) return;
  linear_forward(gate_up, rest.x, weight, bias, {}, stream);
  swiglu_forward(act, gate_up, stream);
}

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  const int64_t tokens = require_rows(dy, "linear_backward_input", "dy");
  const DType dtype = activation_dtype(stream.device());
  require_tensor(dy, dtype, {tokens, weight.rows}, "linear_backward_input", "dy");
  require_tensor(dx, dtype, {tokens, weight.depth}, "linear_backward_input", "dx");
  if (stream.device() == Device::cuda) return cuda::linear_backward_input(dx, dy, weight, accumulate, stream);
  cpu::linear_backward_input(dx, dy, weight, accumulate, stream);
}

}  // namespace lockstep::kernels
