// The flags of the commands that make directories of weights from others, and look at them (recipes/files/commands.h).
#pragma once

#include <string>

#include "cli/flags.h"
#include "recipes/files/commands.h"

namespace lockstep::cli {

recipes::MergeOptions parse_merge(const Values& args);
std::string merge_help();

}  // namespace lockstep::cli
