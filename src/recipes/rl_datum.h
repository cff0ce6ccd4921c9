// A sample of the engine as a row of the trainer.
#pragma once

#include "rollout/sample_groups.h"
#include "train/datum.h"

namespace lockstep::recipes {

// Prompt and response; the response is what the loss looks at. Advantages are the caller's.
train::Datum rl_datum(const rollout::Prompt& prompt, const rollout::Sample& sample);

}  // namespace lockstep::recipes
