#include "kernels/swiglu.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/pack.h"

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

}  // namespace

void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream) {
  const DType dtype = activation_dtype(stream.device());
  require_halves(y, dtype, "swiglu_forward", "y");
  require_tensor(gate_up, dtype, {y.shape[0], 2 * y.shape[1]}, "swiglu_forward", "gate_up");
  if (stream.device() == Device::cuda) return cuda::swiglu_forward(y, gate_up, stream);
  cpu::swiglu_forward(y, gate_up, stream);
}

void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream) {
  const DType dtype = activation_dtype(stream.device());
  require_halves(dy, dtype, "swiglu_backward", "dy");
  require_tensor(gate_up, dtype, {dy.shape[0], 2 * dy.shape[1]}, "swiglu_backward", "gate_up");
  require_tensor(d_gate_up, dtype, {dy.shape[0], 2 * dy.shape[1]}, "swiglu_backward", "d_gate_up");
  if (stream.device() == Device::cuda) return cuda::swiglu_backward(d_gate_up, dy, gate_up, stream);
  cpu::swiglu_backward(d_gate_up, dy, gate_up, stream);
}

}  // namespace lockstep::kernels
