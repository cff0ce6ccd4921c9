#include "kernels/linear.h"

#include "core/error.h"
#include "kernels/cpu/matrix_ops.h"

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

}  // namespace

void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, Stream& stream) {
  const int64_t tokens = require_rows(x, "linear_forward", "x");
  require_f32(x, {tokens, weight.depth}, "linear_forward", "x");
  require_f32(y, {tokens, weight.rows}, "linear_forward", "y");
  if (!bias.empty()) require_f32(bias, {weight.rows}, "linear_forward", "bias");
  cpu::linear_forward(y, x, weight, bias, stream);
}

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream) {
  const int64_t tokens = require_rows(dy, "linear_backward_input", "dy");
  require_f32(dy, {tokens, weight.rows}, "linear_backward_input", "dy");
  require_f32(dx, {tokens, weight.depth}, "linear_backward_input", "dx");
  cpu::linear_backward_input(dx, dy, weight, accumulate, stream);
}

}  // namespace lockstep::kernels
