// The flags of `train` about PPO's critic: miles' names and defaults.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

std::vector<Flag> critic_flags(recipes::RlOptions& options);

// ConfigError where flags contradict one another. A note for each flag that another estimator than ppo does not read.
void resolve_critic(recipes::RlOptions& options, const Classified& given, std::vector<std::string>& notes);

}  // namespace lockstep::cli
