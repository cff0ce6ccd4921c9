// The SHA-256 of a file.
#pragma once

#include <string>

#include "core/fs.h"

namespace lockstep::checkpoint {

// 64 lower-case digits. The file is read in pieces, not mapped: somebody may be writing it. DataError, ConfigError as
// fs::read_file.
std::string file_sha256(const fs::Path& file, const fs::ReadRoot& root = {});

}  // namespace lockstep::checkpoint
