// The fast ways of lora_expand and lora_shrink_backward.
#pragma once

#include "core/stream.h"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {

// y += scale h B of one adapter. False, and nothing done, where 16 bytes of a row do not lie as they should, or an odd
// rank.
bool expand_by_strips(Tensor y, const LoraDelta& delta, Stream& stream);
// dx += the sum over pairs of dh A. False, and nothing done, as above, for more than kMaxSitePairs, and for pairs of
// unlike or large ranks.
bool shrink_backward_by_strips(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream);

}  // namespace lockstep::kernels::cuda
