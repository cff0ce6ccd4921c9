#include "kernels/output_columns.h"

#include "core/error.h"
#include "kernels/cpu/output_columns.h"
#include "kernels/cuda/output_columns.h"
#include "kernels/kernels.h"
#include "kernels/lora_checks.h"
#include "kernels/matmul.h"

namespace lockstep::kernels {
void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream) {
  constexpr const char* kOp = "finish_outputs";
  if (!factor.empty()) require_f32(factor, {y[1]}, kOp, "factor");
  if (!bias.empty()) require_f32(bias, {y[1]}, kOp, "bias");
  if (!residual.empty()) require_tensor(residual, y.dtype, {y[0], y[1]}, kOp, "residual");
  if (factor.empty() && bias.empty() && residual.empty()) return;
  if (stream.device() == Device::cuda) return cuda::finish_outputs(y, factor, bias, residual, stream);
  cpu::finish_outputs(y, factor, bias, residual, stream);
}

void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream) {
  constexpr const char* kOp = "scale_columns";
  require_f32(factor, {dy[1]}, kOp, "factor");
  require_tensor(dz, dy.dtype, {dy[0], dy[1]}, kOp, "dz");
  if (stream.device() == Device::cuda) return cuda::scale_columns(dz, dy, factor, stream);
  cpu::scale_columns(dz, dy, factor, stream);
}

void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream) {
  constexpr const char* kOp = "column_gradient";
  if (!values.y.empty()) {
    require_tensor(values.y, dy.dtype, {dy[0], dy[1]}, kOp, "y");
    require_f32(values.factor, {dy[1]}, kOp, "factor");
    if (!values.bias.empty()) require_f32(values.bias, {dy[1]}, kOp, "bias");
    if (!values.residual.empty()) require_tensor(values.residual, dy.dtype, {dy[0], dy[1]}, kOp, "residual");
  }
  if (stream.device() == Device::cuda) return cuda::column_gradient(plan, dy, values, to, stream);
  cpu::column_gradient(plan, dy, values, to, stream);
}

void weight_gradient(const GradientPlan& plan, ConstTensor a, ConstTensor b, int64_t offset, float scale,
                     Stream& stream) {
  require_tensor(b, a.dtype, {a[0], b[1]}, "weight_gradient", "b");
  if (stream.device() == Device::cuda) return cuda::weight_gradient(plan, a, b, offset, scale, stream);
  for (const GradientRows& rows : plan.rows) {
    const int64_t begin = rows.row_begin, end = begin + rows.rows;
    const Tensor gradient(rows.gradient + offset, DType::f32, {a[1], b[1]});
    outer_accumulate(gradient, a.rows(begin, end), b.rows(begin, end), scale, stream);
  }
}

void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs,
               Stream& stream) {
  constexpr const char* kOp = "row_norms";
  require_pairs(pairs, kOp, stream);
  for (const LoraPair& pair : pairs)
    if (pair.in() != weight.depth || pair.b[1] != norm[0])
      throw ShapeError(
          {.what = "a LoRA pair does not fit the rows of a weight",
           .where = kOp,
           .got = shape_text(pair.a) + " and " + shape_text(pair.b),
           .wanted = std::to_string(weight.depth) + " inputs and " + std::to_string(norm[0]) + " outputs"});
  if (norm.dtype != DType::f32 || norm.rank != 1 || begin < 0 || begin + norm[0] > weight.rows)
    throw ShapeError({.what = "rows outside the weight",
                      .where = kOp,
                      .got = std::to_string(norm[0]) + " from " + std::to_string(begin),
                      .wanted = "within " + std::to_string(weight.rows)});
  if (stream.device() == Device::cuda) return cuda::row_norms(norm, weight, begin, pairs, stream);
  cpu::row_norms(norm, weight, begin, pairs, stream);
}

}  // namespace lockstep::kernels
