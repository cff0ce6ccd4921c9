#include "kernels/matmul.h"

#include <string>

#include "core/error.h"
#include "kernels/cpu/matrix_ops.h"

namespace lockstep::kernels {
namespace {

void require_matrix(const ConstTensor& matrix, const char* op, const char* argument) {
  if (matrix.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": " + argument,
                      .got = shape_text(matrix),
                      .wanted = "a matrix"});
}

}  // namespace

void matmul(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream) {
  require_matrix(a, "matmul", "a");
  require_matrix(b, "matmul", "b");
  require_f32(a, {a[0], a[1]}, "matmul", "a");
  require_f32(b, {a[1], b[1]}, "matmul", "b");
  require_f32(c, {a[0], b[1]}, "matmul", "c");
  cpu::matmul(c, a, b, scale, accumulate, stream);
}

void matmul_transposed(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream) {
  require_matrix(a, "matmul_transposed", "a");
  require_matrix(b, "matmul_transposed", "b");
  require_f32(a, {a[0], a[1]}, "matmul_transposed", "a");
  require_f32(b, {b[0], a[1]}, "matmul_transposed", "b");
  require_f32(c, {a[0], b[0]}, "matmul_transposed", "c");
  cpu::matmul_transposed(c, a, b, scale, accumulate, stream);
}

void outer_accumulate(Tensor g, ConstTensor a, ConstTensor b, float scale, Stream& stream) {
  require_matrix(a, "outer_accumulate", "a");
  require_matrix(b, "outer_accumulate", "b");
  require_f32(a, {a[0], a[1]}, "outer_accumulate", "a");
  require_f32(b, {a[0], b[1]}, "outer_accumulate", "b");
  require_f32(g, {a[1], b[1]}, "outer_accumulate", "g");
  cpu::outer_accumulate(g, a, b, scale, stream);
}

}  // namespace lockstep::kernels
