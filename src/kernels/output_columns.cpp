#include "kernels/output_columns.h"

#include "core/error.h"
#include "kernels/cpu/output_columns.h"
#include "kernels/kernels.h"
#include "kernels/lora_checks.h"

namespace lockstep::kernels {
namespace {

void require_cpu(const char* op, const Stream& stream) {
  if (stream.device() != Device::cpu) throw DeviceError({.what = std::string(op) + " runs on a CPU"});
}

}  // namespace

void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream) {
  constexpr const char* kOp = "finish_outputs";
  require_cpu(kOp, stream);
  if (!factor.empty()) require_f32(factor, {y[1]}, kOp, "factor");
  if (!bias.empty()) require_f32(bias, {y[1]}, kOp, "bias");
  if (!residual.empty()) require_tensor(residual, y.dtype, {y[0], y[1]}, kOp, "residual");
  cpu::finish_outputs(y, factor, bias, residual, stream);
}

void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream) {
  constexpr const char* kOp = "scale_columns";
  require_cpu(kOp, stream);
  require_f32(factor, {dy[1]}, kOp, "factor");
  require_tensor(dz, dy.dtype, {dy[0], dy[1]}, kOp, "dz");
  cpu::scale_columns(dz, dy, factor, stream);
}

void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream) {
  constexpr const char* kOp = "column_gradient";
  require_cpu(kOp, stream);
  if (!values.y.empty()) {
    require_tensor(values.y, dy.dtype, {dy[0], dy[1]}, kOp, "y");
    require_f32(values.factor, {dy[1]}, kOp, "factor");
    if (!values.bias.empty()) require_f32(values.bias, {dy[1]}, kOp, "bias");
    if (!values.residual.empty()) require_tensor(values.residual, dy.dtype, {dy[0], dy[1]}, kOp, "residual");
  }
  cpu::column_gradient(plan, dy, values, to, stream);
}

void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs,
               Stream& stream) {
  constexpr const char* kOp = "row_norms";
  require_cpu(kOp, stream);
  require_pairs(pairs, kOp, stream);
  for (const LoraPair& pair : pairs)
    if (pair.in() != weight.depth || pair.b[1] != norm[0])
      throw ShapeError({.what = "a LoRA pair does not fit the rows of a weight",
                        .where = kOp,
                        .got = shape_text(pair.a) + " and " + shape_text(pair.b),
                        .wanted = std::to_string(weight.depth) + " inputs and " + std::to_string(norm[0]) +
                                  " outputs"});
  if (norm.dtype != DType::f32 || norm.rank != 1 || begin < 0 || begin + norm[0] > weight.rows)
    throw ShapeError({.what = "rows outside the weight",
                      .where = kOp,
                      .got = std::to_string(norm[0]) + " from " + std::to_string(begin),
                      .wanted = "within " + std::to_string(weight.rows)});
  cpu::row_norms(norm, weight, begin, pairs, stream);
}

}  // namespace lockstep::kernels
