// Judges what launch scripts claim: a claim is applied, agrees with what the options say, or is a ConfigError.
#pragma once

#include <string>
#include <vector>

#include "cli/classify.h"
#include "recipes/launch_claims.h"

namespace lockstep::cli {

// Those that config.json and the device decide, for recipes::check_claims. A line in `notes` for each that nothing else
// decides.
std::vector<recipes::LaunchClaim> deferred_claims(const std::vector<MadeClaim>& claims,
                                                  std::vector<std::string>& notes);

// Judges the others against the options of a run, which a context length changes, with a line in `notes` for each.
// ConfigError naming the flag, its value, and what the run does instead.
void judge_claims(const std::vector<MadeClaim>& claims, recipes::RlOptions& options, std::vector<std::string>& notes);

}  // namespace lockstep::cli
