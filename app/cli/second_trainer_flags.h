// The flags of `train` about trainers beside the actor's. PPO's critic: miles' names and defaults.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

void add_second_trainer_flags(FlagSet& flags, recipes::RlOptions& options);

// ConfigError where flags contradict one another. A note for each flag that the run does not read.
void resolve_second_trainers(recipes::RlOptions& options, const Classified& given, std::vector<std::string>& notes);

}  // namespace lockstep::cli
