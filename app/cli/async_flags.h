// Flags of `train` about when samples are drawn: ahead by a rule, as they arrive, or over several rollouts.
#pragma once

#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

std::vector<Flag> async_flags(recipes::RlOptions& options);
// After corrections, gates and the engine are known. ConfigError for what does not go together, each with what to do.
void resolve_async(recipes::RlOptions& options, Classified& given);

}  // namespace lockstep::cli
