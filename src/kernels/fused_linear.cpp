#include "kernels/fused_linear.h"

#include "core/error.h"
#include "kernels/cuda/ops.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels {
namespace {

constexpr const char* kOp = "fused_linear_forward";

// What the separate ops would check, for the call that does without them.
void require_call(const FusedLinear& call, const Stream& stream) {
  if (!call.weight || call.x.rank != 2 || (call.swiglu && (call.weight->rows % 2 != 0 || !call.residual.empty())))
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = kOp,
                      .got = "x " + shape_text(call.x),
                      .wanted = "a weight, and for swiglu an even number of rows and no residual"});
  const DType dtype = activation_dtype(stream.device());
  const int64_t tokens = call.x[0], inputs = call.weight->depth, outputs = call.weight->rows;
  const bool sums = call.y.dtype == DType::f32 && !call.swiglu;
  require_tensor(call.x, dtype, {tokens, inputs}, kOp, "x");
  require_tensor(call.y, sums ? DType::f32 : dtype, {tokens, call.swiglu ? outputs / 2 : outputs}, kOp, "y");
  if (!call.residual.empty()) require_tensor(call.residual, call.y.dtype, {tokens, outputs}, kOp, "residual");
  if (!call.bias.empty()) require_f32(call.bias, {outputs}, kOp, "bias");
  if (!call.norm_weight.empty()) {
    require_f32(call.norm_weight, {inputs}, kOp, "norm_weight");
    require_tensor(call.normed, dtype, {tokens, inputs}, kOp, "normed");
  }
  if (call.swiglu) require_tensor(call.gate_up, dtype, {tokens, outputs}, kOp, "gate_up");
  if (!call.pairs.empty()) require_tensor(call.h, dtype, {tokens, total_rank(call.pairs)}, kOp, "h");
  for (const LoraPair& pair : call.pairs) {
    require_tensor(pair.a, dtype, {inputs, pair.rank()}, kOp, "a");
    require_tensor(pair.b, dtype, {pair.rank(), pair.b[1]}, kOp, "b");
    if (pair.out_begin < 0 || pair.out_begin + pair.b[1] > outputs)
      throw ShapeError({.what = "a LoRA pair reaches beyond the product",
                        .where = kOp,
                        .got = std::to_string(pair.out_begin) + " + " + std::to_string(pair.b[1]),
                        .wanted = "at most " + std::to_string(outputs)});
  }
}

}  // namespace

void fused_linear_forward(const FusedLinear& call, Stream& stream) {
  require_call(call, stream);
  if (call.x[0] == 0) return;
  if (stream.device() == Device::cuda && cuda::fused_linear_forward(call, stream)) return;
  ConstTensor x = call.x;
  if (!call.norm_weight.empty()) {
    rmsnorm_forward(call.normed, Tensor(), x, call.norm_weight, call.norm_eps, stream);
    x = call.normed;
  }
  const Tensor product = call.swiglu ? call.gate_up : call.y;
  linear_forward(product, x, *call.weight, call.bias, call.residual, stream);
  if (!call.pairs.empty()) {
    lora_shrink(call.h, x, call.pairs, stream);
    lora_expand(product, call.h, call.pairs, stream);
  }
  if (call.swiglu) swiglu_forward(call.y, product, stream);
}

}  // namespace lockstep::kernels
