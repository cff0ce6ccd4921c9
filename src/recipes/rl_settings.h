// What of an RL run decides its results, as its checkpoints keep it.
#pragma once

#include "recipes/options.h"
#include "recipes/prompts.h"

namespace lockstep::recipes {

// Which prompts a rollout reads, how they are sampled, how a rollout is cut into steps, and the method
// (recipes/run_settings.h, recipes/algorithm.h).
OrderedJson rl_settings(const RlOptions& options, const PromptSet& prompts);

}  // namespace lockstep::recipes
