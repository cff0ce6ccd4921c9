// The flags of the commands that make directories of weights from others, and look at them (recipes/files/commands.h).
#pragma once

#include <string>

#include "cli/flags.h"
#include "recipes/files/commands.h"

namespace lockstep::cli {

recipes::MergeOptions parse_merge(const Values& args);
recipes::DiffOptions parse_diff(const Values& args);
recipes::VerifyOptions parse_verify(const Values& args);
recipes::ConvertOptions parse_convert(const Values& args);

std::string merge_help();
std::string diff_help();
std::string verify_help();
std::string convert_help();

}  // namespace lockstep::cli
