#include "kernels/rmsnorm.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"

namespace lockstep::kernels {
namespace {

void require_like(const ConstTensor& tensor, const ConstTensor& x, const char* op, const char* argument,
                  const Stream& stream) {
  const DType dtype = activation_dtype(stream.device());
  if (x.rank == 3)
    require_tensor(tensor, dtype, {x.shape[0], x.shape[1], x.shape[2]}, op, argument);
  else
    require_tensor(tensor, dtype, {x.shape[0], x.shape[1]}, op, argument);
}

// Returns the number of rows.
int64_t require_rows(const ConstTensor& x, const ConstTensor& weight, const char* op, const Stream& stream) {
  if (x.rank != 2 && (x.rank != 3 || stream.device() == Device::cuda))
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": x",
                      .got = shape_text(x),
                      .wanted = "[T, D] or, on the CPU, [T, H, D]"});
  require_like(x, x, op, "x", stream);
  require_f32(weight, {x.shape[x.rank - 1]}, op, "weight");
  return x.rank == 3 ? x.shape[0] * x.shape[1] : x.shape[0];
}

}  // namespace

void rmsnorm_forward(Tensor y, Tensor rstd, ConstTensor x, ConstTensor weight, float eps, Stream& stream) {
  const int64_t rows = require_rows(x, weight, "rmsnorm_forward", stream);
  require_like(y, x, "rmsnorm_forward", "y", stream);
  if (!rstd.empty()) require_f32(rstd, {rows}, "rmsnorm_forward", "rstd");
  if (stream.device() == Device::cuda) return cuda::rmsnorm_forward(y, rstd, x, weight, eps, stream);
  cpu::rmsnorm_forward(y, rstd, x, weight, eps, stream);
}

void rmsnorm_backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor weight, ConstTensor rstd, bool accumulate,
                      Stream& stream) {
  const int64_t rows = require_rows(x, weight, "rmsnorm_backward", stream);
  require_like(dx, x, "rmsnorm_backward", "dx", stream);
  require_like(dy, x, "rmsnorm_backward", "dy", stream);
  require_f32(rstd, {rows}, "rmsnorm_backward", "rstd");
  if (stream.device() == Device::cuda) return cuda::rmsnorm_backward(dx, dy, x, weight, rstd, accumulate, stream);
  cpu::rmsnorm_backward(dx, dy, x, weight, rstd, accumulate, stream);
}

}  // namespace lockstep::kernels
