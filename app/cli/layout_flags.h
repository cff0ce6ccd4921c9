// Flags of launch scripts about hosts, devices and ranks.
#pragma once

#include <vector>

#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

std::vector<Flag> layout_flags(recipes::TrainingOptions& training);
// Those of runs with an engine, besides.
std::vector<Flag> engine_layout_flags(recipes::TrainingOptions& training);

}  // namespace lockstep::cli
