#include "kernels/swiglu.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels {
namespace {

void require_halves(const ConstTensor& y, const char* op, const char* argument) {
  if (y.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": " + argument,
                      .got = shape_text(y),
                      .wanted = "f32 [T, F]"});
  require_f32(y, {y.shape[0], y.shape[1]}, op, argument);
}

}  // namespace

void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream) {
  require_halves(y, "swiglu_forward", "y");
  require_f32(gate_up, {y.shape[0], 2 * y.shape[1]}, "swiglu_forward", "gate_up");
  cpu::swiglu_forward(y, gate_up, stream);
}

void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream) {
  require_halves(dy, "swiglu_backward", "dy");
  require_f32(gate_up, {dy.shape[0], 2 * dy.shape[1]}, "swiglu_backward", "gate_up");
  require_f32(d_gate_up, {dy.shape[0], 2 * dy.shape[1]}, "swiglu_backward", "d_gate_up");
  cpu::swiglu_backward(d_gate_up, dy, gate_up, stream);
}

}  // namespace lockstep::kernels
