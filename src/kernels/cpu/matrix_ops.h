// The CPU's side of the matmuls. Arguments have been checked; contracts are in kernels/{pack,linear,matmul}.h.
#pragma once

#include "kernels/linear.h"
#include "kernels/matmul.h"
#include "kernels/pack.h"

namespace lockstep::kernels::cpu {

void pack_panels(PackedWeight& weight, std::span<const NamedTensor* const> parts, Stream& stream);
void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream);
void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream);
// Inputs [begin, end) of a panel's rows as f32: to [end - begin][kPanel].
void widen_panel(float* to, const PackedWeight& weight, int64_t panel, int64_t begin, int64_t end);

// What a matmul has beside its weight; whatever it lacks is empty.
struct LinearParts {
  ConstTensor bias, residual;
  std::span<const LoraSegment> segments = {};
  Tensor h = {};  // scratch memory of the segments, [T, the largest total rank]
};
void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, const LinearParts& parts, Stream& stream);
void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream);

void matmul(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream);
void matmul_transposed(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream);
void outer_accumulate(Tensor g, ConstTensor a, ConstTensor b, float scale, Stream& stream);

}  // namespace lockstep::kernels::cpu
