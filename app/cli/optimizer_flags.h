// The optimizer and its learning rate.
#pragma once

#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

std::vector<Flag> optimizer_flags(recipes::OptimizerOptions& optimizer);
// ConfigError: flags of the schedule contradict one another.
void check_schedule(const recipes::OptimizerOptions& optimizer, const Classified& given);

}  // namespace lockstep::cli
