// How a run meets the other ranks of its job.
#pragma once

#include <memory>

#include "recipes/base.h"
#include "recipes/control.h"

namespace lockstep::recipes {

// Control::join with what has to be the same on all ranks; then ranks with GPUs find that each has one of its own (or
// as many share one as were asked for) and connect the GPUs by NCCL, if RankOptions::wire says so. Collective. Prints
// how what lies on GPUs moves. ConfigError on all ranks: ranks that differ, a GPU that too many share, no usable NCCL.
std::unique_ptr<parallel::Group> join_ranks(const Control& control, const Base& base, Stream& stream,
                                            const RankOptions& options);

}  // namespace lockstep::recipes
