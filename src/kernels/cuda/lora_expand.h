// The fast kernels of lora_expand and lora_shrink_backward.
#pragma once

#include "core/stream.h"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {

// y += scale h B for one adapter. Returns false, and has done nothing, if rows are not aligned to 16 bytes or a rank is
// odd.
bool expand_by_strips(Tensor y, const LoraDelta& delta, Stream& stream);
// dx += the sum over pairs of dh A. Returns false, and has done nothing, as above, for more than kMaxSitePairs
// pairs, and for pairs of different or large ranks.
bool shrink_backward_by_strips(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream);

}  // namespace lockstep::kernels::cuda
