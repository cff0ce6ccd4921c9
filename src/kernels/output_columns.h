// What an adapter does to the outputs of a linear layer column by column: factors (DoRA), biases, and their gradients.
// T rows, N outputs.
#pragma once

#include <span>

#include "core/stream.h"
#include "kernels/lora.h"
#include "kernels/packed_weight.h"

namespace lockstep::kernels {

// y = y * factor + bias + residual
//   y [T, N] activations, or f32 on a GPU; residual like y; factor, bias [N] f32. Each but y may be empty.
// CPU: one rounding for each operation, in this order. CUDA: in f32, rounded once. Overwrites y.
void finish_outputs(Tensor y, ConstTensor factor, ConstTensor bias, ConstTensor residual, Stream& stream);

// dz = dy * factor.   dz, dy [T, N] activations; factor [N] f32
void scale_columns(Tensor dz, ConstTensor dy, ConstTensor factor, Stream& stream);

// What a column's gradient multiplies dy by: ((y - residual) - bias) * factor; without y: 1.
struct ColumnValues {
  ConstTensor y = {}, residual = {};  // [T, N] activations; residual may be empty
  ConstTensor bias = {};              // [N] f32, or empty
  ConstTensor factor = {};            // [N] f32, not empty with y
};
// g[offset + i] += sum over the rows of a lane, in order, of dy[t, begin + i] * value[t, begin + i], f32, for i below
// `count`. One chain for each output, never fused, so that any split of a lane into calls has the same bits.
struct ColumnGradient {
  int64_t begin = 0, count = 0;  // columns of dy
  int64_t offset = 0;            // floats into a lane's buffer
};
void column_gradient(const GradientPlan& plan, ConstTensor dy, const ColumnValues& values, const ColumnGradient& to,
                     Stream& stream);

// g[offset + m * N + n] += scale * sum over the rows of a lane of a[t, m] * b[t, n], f32: the gradient of a weight, a =
// dy [T, M], b = x [T, N], or of a small factor. CPU: one chain over a lane's rows in order. CUDA: one chain of groups
// of 16 rows for each block of 256, the blocks' sums added in order.
void weight_gradient(const GradientPlan& plan, ConstTensor a, ConstTensor b, int64_t offset, float scale,
                     Stream& stream);

// norm[i] = |W[begin + i, :] + sum over pairs of scale B[:, i]^T A^T|, f32 products, sums of 64 in f32 and of those in
// double (CUDA: a fixed tree in f32).   norm [count] f32; the pairs cover these rows exactly.
// Source: arXiv 2402.09353, equation 5.
void row_norms(Tensor norm, const PackedWeight& weight, int64_t begin, std::span<const LoraPair> pairs, Stream& stream);

}  // namespace lockstep::kernels
