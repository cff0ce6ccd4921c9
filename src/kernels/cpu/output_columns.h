// The CPU's side of kernels/output_columns.h and kernels/embedding.h. Arguments have been checked.
#pragma once

#include "kernels/embedding.h"
#include "kernels/output_columns.h"

namespace lockstep::kernels::cpu {

void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream);
void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream);
void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream);
void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs, Stream& stream);
void embedding_gradient(const GradientPlan& plan, ConstTensor dy, std::span<const int32_t> ids, int64_t offset,
                        Stream& stream);

}  // namespace lockstep::kernels::cpu
