// The flags of the commands that make directories of weights from others, and look at them (commands/files/commands.h).
#pragma once

#include <string>

#include "cli/flags.h"
#include "commands/files/commands.h"

namespace lockstep::cli {

commands::MergeOptions parse_merge(const Values& args);
commands::DiffOptions parse_diff(const Values& args);
commands::VerifyOptions parse_verify(const Values& args);
commands::ConvertOptions parse_convert(const Values& args);

std::string merge_help();
std::string diff_help();
std::string verify_help();
std::string convert_help();

}  // namespace lockstep::cli
