// The GPU's side of kernels/output_columns.h and kernels/embedding.h. Arguments have been checked.
#pragma once

#include "kernels/embedding.h"
#include "kernels/output_columns.h"

namespace lockstep::kernels::cuda {

void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream);
void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream);
void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream);
void weight_gradient(const GradientPlan& plan, ConstTensor a, ConstTensor b, int64_t offset, float scale,
                     Stream& stream);
void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs, Stream& stream);
void embedding_gradient(const GradientPlan& plan, ConstTensor dy, std::span<const int32_t> ids, int64_t offset,
                        Stream& stream);
// y += scale h B of each pair, y f32 (logits): one chain over the rank for each element.
void expand_f32(Tensor y, ConstTensor h, std::span<const LoraPair> pairs, Stream& stream);

}  // namespace lockstep::kernels::cuda
