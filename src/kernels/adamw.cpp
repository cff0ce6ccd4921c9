#include "kernels/adamw.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {
namespace {

void require_flat(const ConstTensor& x, const char* op, const char* argument) {
  if (x.rank != 1)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": " + argument,
                      .got = shape_text(x),
                      .wanted = "f32 [N]"});
  require_f32(x, {x.shape[0]}, op, argument);
}

}  // namespace

void adamw(Tensor w_new, Tensor working, ConstTensor w, Tensor m, Tensor v, ConstTensor grad, const AdamWStep& options,
           Stream& stream) {
  require_flat(w, "adamw", "w");
  if (!working.empty()) require_tensor(working, DType::bf16, {w.shape[0]}, "adamw", "working");
  require_f32(w_new, {w.shape[0]}, "adamw", "w_new");
  require_f32(m, {w.shape[0]}, "adamw", "m");
  require_f32(v, {w.shape[0]}, "adamw", "v");
  require_f32(grad, {w.shape[0]}, "adamw", "grad");
  if (options.step < 1)
    throw ConfigError(
        {.what = "AdamW counts its steps from 1", .where = "adamw: step", .got = std::to_string(options.step)});
  if (stream.device() == Device::cuda) return cuda::adamw(w_new, working, w, m, v, grad, options, stream);
  cpu::adamw(w_new, w, m, v, grad, options, stream);
  if (!working.empty()) cpu::round_to_working(working, w_new, stream);
}

void round_to_working(Tensor working, ConstTensor w, Stream& stream) {
  require_flat(w, "round_to_working", "w");
  require_tensor(working, DType::bf16, {w.shape[0]}, "round_to_working", "working");
  if (stream.device() == Device::cuda) return cuda::round_to_working(working, w, stream);
  cpu::round_to_working(working, w, stream);
}

void round_transposed(Tensor working, ConstTensor w, std::span<const FlatMatrix> matrices, Stream& stream) {
  constexpr const char* kOp = "round_transposed";
  require_flat(w, kOp, "w");
  require_tensor(working, DType::bf16, {w.shape[0]}, kOp, "working");
  for (const FlatMatrix& m : matrices)
    if (m.rows < 0 || m.cols < 0 || m.offset < 0 || m.offset + m.rows * m.cols > w.shape[0])
      throw ShapeError(
          {.what = "a matrix lies outside its array",
           .where = kOp,
           .got = std::to_string(m.rows) + " x " + std::to_string(m.cols) + " at " + std::to_string(m.offset),
           .wanted = "within " + std::to_string(w.shape[0])});
  if (stream.device() == Device::cuda) return cuda::round_transposed(working, w, matrices, stream);
  cpu::round_transposed(working, w, matrices, stream);
}

double sum_of_squares(ConstTensor x, Stream& stream) {
  require_flat(x, "sum_of_squares", "x");
  if (stream.device() == Device::cuda) return cuda::sum_of_squares(x, stream);
  return cpu::sum_of_squares(x, stream);
}

}  // namespace lockstep::kernels
