// The options of a run as an rl::Algorithm: estimator, loss, corrections and the rest of what turns rollouts into
// steps.
#pragma once

#include "recipes/options.h"
#include "rl/algorithm.h"

namespace lockstep::recipes {

rl::Algorithm algorithm_of(const RlOptions& options);

// Settings of a checkpoint (recipes/run_settings.h): of the method, where it is not what it is without its flags.
OrderedJson algorithm_settings(const RlOptions& options);

}  // namespace lockstep::recipes
