// The flags of `train` that say who generates, and what becomes of a script's engine flags then.
#pragma once

#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

// What the flags say before they are held against each other.
struct RolloutEngineForm {
  std::string engine = "local", sync_strategy, on_version_change;
};

std::vector<Flag> rollout_engine_flags(RolloutEngineForm& form, recipes::RlOptions& options);

// Fills options.engine. With servers, the flags of --vllm-... and --sglang-... are taken out of `given`: they go to the
// command that is started, or are refused, and flags that say how weights reach an engine are refused. ConfigError.
void resolve_rollout_engine(RolloutEngineForm form, recipes::RlOptions& options, Classified& given);

}  // namespace lockstep::cli
