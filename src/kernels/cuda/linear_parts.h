// The launches that a linear call is composed of on a GPU (linear.cu); linear_call.cpp chooses among them. Arguments
// are already checked. Every combination gives the bits of the separate ops.
#pragma once

#include <functional>

#include "kernels/linear.h"
#include "kernels/qk_norm_rope.h"

namespace lockstep::kernels::cuda {

// y = x W^T + bias + residual.
void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias, ConstTensor residual,
                    Stream& stream);
void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight, bool accumulate, Stream& stream);

// What one launch has computed for rows of one adapter: nothing; y and h, but not h B; or the whole call, without
// storing h.
enum class AdaptedPart { nothing, h, all };
AdaptedPart adapted_linear_begin(const LinearCall& call, ConstTensor x, Tensor h, Stream& stream);

// Many rows: the matmul and the adapter's part in one launch (linear_tiles.cu), where that is faster than `apart`,
// which makes the same (linear_choice.h). Elsewhere false, and the result is still to be made.
bool tiled_linear(const LinearCall& call, ConstTensor x, const LoraDelta& delta, const std::function<void()>& apart,
                  Stream& stream);
// The same for a single pair of at most 16 ranks, whose h = x A the launch computes, too, and stores unless h is empty.
// `apart` makes h as well.
bool tiled_linear_and_h(const LinearCall& call, ConstTensor x, Tensor h, std::span<const LoraPair> pairs,
                        const std::function<void()>& apart, Stream& stream);
// act = swiglu of it.
bool tiled_swiglu(const LinearCall& call, ConstTensor x, const LoraDelta& delta, const std::function<void()>& apart,
                  Stream& stream);
// qk_norm_rope_forward of it; y is not written.
bool tiled_heads(const LinearCall& call, const QkNormRopeCall& heads, ConstTensor x, const LoraDelta& delta,
                 const std::function<void()>& apart, Stream& stream);
// dx (+)= dy W + the sum of delta's pairs.
bool tiled_backward(const LinearBackwardCall& call, const LoraDelta& delta, const std::function<void()>& apart,
                    Stream& stream);

// Whether x A of so many rows takes so few multiprocessors that it fits beside a matmul.
bool h_fits_beside(int64_t rows);

// These return false, and have done nothing, if no such launch supports the arguments.
// act = swiglu of (x W^T + bias + the adapter's part), for rows of one adapter. Neither gate_up nor h is written.
bool adapted_swiglu_forward(const LinearCall& call, ConstTensor x, Stream& stream);
// The whole call with its norm, for one row with an adapter. The normalized row, h and, with act, y are not written.
bool normed_adapted_forward(const LinearCall& call, Stream& stream);
// y (or, with `swiglu`, the activation) of the normalized input, which is never written.
bool normed_linear_forward(Tensor y, const LinearInput& input, const PackedWeight& weight, ConstTensor bias,
                           bool swiglu, Stream& stream);

}  // namespace lockstep::kernels::cuda
