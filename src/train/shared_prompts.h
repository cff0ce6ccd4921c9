// Which samples of a step compute the rows of their prompt once (StepPlan::share_prompts).
//
// Neighbours in one lane that begin with the same tokens, none of which is learned, form a run: the first of them
// computes these rows for all, as far as they fill whole KV blocks. What a run is depends on the step's samples and
// lanes alone, not on micro-batches, ranks or devices of one kind, so neither do the bits of the gradient. Log-probs
// have the bits that every sample has alone.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/device.h"
#include "train/datum.h"

namespace lockstep::train {

// No run computes more rows: it stays within one micro-batch, whatever TrainerOptions::max_tokens says.
int64_t max_shared_rows(Device device);

// [i]: how many first rows datum i leaves to the first one of its run, which is 0 for that one. lane_of(i): of datum i.
// Only whole runs from the first datum on, until they compute more than `enough` rows: a step asks for each
// micro-batch.
std::vector<int64_t> shared_prompts(std::span<const Datum> datums, int64_t max_rows,
                                    const std::function<int(size_t)>& lane_of,
                                    int64_t enough = std::numeric_limits<int64_t>::max());

}  // namespace lockstep::train
