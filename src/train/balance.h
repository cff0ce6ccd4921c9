// Which samples of a step go to which gradient lane, so that ranks are done at about the same time. The choice depends
// on the samples alone, so it is the same for any number of ranks; it decides bits, as lanes add up in another order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec.h"
#include "train/datum.h"

namespace lockstep::train {

// By what lanes are equally heavy. none: samples stay in batch order.
enum class Balance { none, tokens, flops };

// The positions of the datums in the order in which a step should take them: terms of `datums_per_term` consecutive
// datums stay together. The terms go, the dearest first, each to the lane that is the lightest so far and has room;
// within a lane they stay in batch order, and a lane has as many as it would have without balancing. Costs: tokens; or
// the multiply-adds of a forward pass, to which attention adds the square of a sample's length.
std::vector<int64_t> balanced_order(std::span<const Datum> datums, int64_t datums_per_term, int lanes, Balance balance,
                                    const model::ModelSpec& spec);

}  // namespace lockstep::train
