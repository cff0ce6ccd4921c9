#include "kernels/swiglu.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"
#include "kernels/lora_checks.h"

namespace lockstep::kernels {
namespace {

void require_halves(const ConstTensor& y, DType dtype, const char* op, const char* argument) {
  if (y.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": " + argument,
                      .got = shape_text(y),
                      .wanted = "[T, F]"});
  require_tensor(y, dtype, {y.shape[0], y.shape[1]}, op, argument);
}

void require_gate_up(const ConstTensor& y, const ConstTensor& gate_up, const char* op, const Stream& stream) {
  const DType dtype = activation_dtype(stream.device());
  require_halves(y, dtype, op, "y");
  require_tensor(gate_up, dtype, {y.shape[0], 2 * y.shape[1]}, op, "gate_up");
}

void require_gradients(const ConstTensor& d_gate_up, const ConstTensor& dy, const ConstTensor& gate_up,
                       const Stream& stream) {
  const DType dtype = activation_dtype(stream.device());
  require_halves(dy, dtype, "swiglu_backward", "dy");
  require_tensor(gate_up, dtype, {dy.shape[0], 2 * dy.shape[1]}, "swiglu_backward", "gate_up");
  require_tensor(d_gate_up, dtype, {dy.shape[0], 2 * dy.shape[1]}, "swiglu_backward", "d_gate_up");
}

}  // namespace

void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream) {
  require_gate_up(y, gate_up, "swiglu_forward", stream);
  if (stream.device() == Device::cuda) return cuda::swiglu_forward(y, gate_up, stream);
  cpu::swiglu_forward(y, gate_up, stream);
}

void swiglu_forward(Tensor y, UnfinishedLinear gate_up, bool keep, Stream& stream) {
  const Tensor complete = gate_up.y();
  if (!gate_up.complete()) {
    require_gate_up(y, complete, "swiglu_forward", stream);
    require_delta(complete, gate_up.delta(), "swiglu_forward", stream);
    if (cuda::swiglu_forward(y, gate_up, keep, stream)) return;
    finish(std::move(gate_up), stream);
  }
  swiglu_forward(y, complete, stream);
}

void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream) {
  require_gradients(d_gate_up, dy, gate_up, stream);
  if (stream.device() == Device::cuda) return cuda::swiglu_backward(d_gate_up, dy, gate_up, stream);
  cpu::swiglu_backward(d_gate_up, dy, gate_up, stream);
}

void swiglu_backward(Tensor d_gate_up, UnfinishedLinear dy, ConstTensor gate_up, Stream& stream) {
  const Tensor complete = dy.y();
  if (!dy.complete()) {
    require_gradients(d_gate_up, complete, gate_up, stream);
    require_delta(complete, dy.delta(), "swiglu_backward", stream);
    if (cuda::swiglu_backward(d_gate_up, dy, gate_up, stream)) return;
    finish(std::move(dy), stream);
  }
  swiglu_backward(d_gate_up, complete, gate_up, stream);
}

}  // namespace lockstep::kernels
