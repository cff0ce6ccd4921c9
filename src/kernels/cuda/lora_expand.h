// The fast way of lora_expand.
#pragma once

#include "core/stream.h"
#include "kernels/lora.h"

namespace lockstep::kernels::cuda {

// y += scale h B of one adapter. False, and nothing done, where 16 bytes of a row do not lie as they should, or an odd
// rank.
bool expand_by_strips(Tensor y, const PendingDelta& delta, Stream& stream);

}  // namespace lockstep::kernels::cuda
