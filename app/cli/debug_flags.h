// Flags of `train` that run one half of it alone, and write down what passes between the halves.
#pragma once

#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

struct DebugForm {
  std::string dump_details;
};

std::vector<Flag> debug_flags(DebugForm& form, recipes::DebugOptions& options);
// After the staleness and the evaluation are known: a run of one half has neither. ConfigError where flags contradict
// one another.
void resolve_debug(const DebugForm& form, recipes::RlOptions& options, std::vector<std::string>& notes);

}  // namespace lockstep::cli
