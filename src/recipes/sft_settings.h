// What of a supervised run decides its results, beside its rows and its reference, as its checkpoints keep it.
#pragma once

#include "recipes/options.h"

namespace lockstep::recipes {

// Batches, their order, the loss and what becomes of a row (recipes/run_settings.h).
OrderedJson sft_settings(const SftOptions& options);

}  // namespace lockstep::recipes
