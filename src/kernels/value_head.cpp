#include "kernels/value_head.h"

#include "kernels/kernels.h"

namespace lockstep::kernels {

namespace {

void require_head(ConstTensor values, ConstTensor rows, ConstTensor weight, Stream& stream, const char* op) {
  require_tensor(rows, activation_dtype(stream.device()), {values[0], weight[0]}, op, "x");
  require_f32(values, {rows[0]}, op, "v");
  require_f32(weight, {rows[1]}, op, "weight");
}

}  // namespace

void value_head_forward(Tensor v, ConstTensor x, ConstTensor weight, ConstTensor bias, Stream& stream) {
  require_head(v, x, weight, stream, "value_head_forward");
  require_f32(bias, {1}, "value_head_forward", "bias");
  if (stream.device() == Device::cuda) return cuda::value_head_forward(v, x, weight, bias, stream);
  cpu::value_head_forward(v, x, weight, bias, stream);
}

void value_head_backward(Tensor dx, ConstTensor dv, ConstTensor weight, Stream& stream) {
  require_head(dv, dx, weight, stream, "value_head_backward");
  if (stream.device() == Device::cuda) return cuda::value_head_backward(dx, dv, weight, stream);
  cpu::value_head_backward(dx, dv, weight, stream);
}

void value_head_gradient(Tensor d_weight, Tensor d_bias, ConstTensor dv, ConstTensor x, Stream& stream) {
  require_head(dv, x, d_weight, stream, "value_head_gradient");
  require_f32(d_bias, {1}, "value_head_gradient", "d_bias");
  if (stream.device() == Device::cuda) return cuda::value_head_gradient(d_weight, d_bias, dv, x, stream);
  cpu::value_head_gradient(d_weight, d_bias, dv, x, stream);
}

}  // namespace lockstep::kernels
