// Secrets that come by a file, so that they stand in no list of processes, no history of a shell, and nothing that a
// run writes.
#pragma once

#include <string>

#include "cli/flags.h"

namespace lockstep::cli {

// What the file of a secret holds: one line, without the spaces around it. DataError: it cannot be read; ConfigError
// naming the flag: it is empty, or has a control character.
std::string read_secret(const std::string& flag, const std::string& path);
Binding secret_file(std::string& target);

}  // namespace lockstep::cli
