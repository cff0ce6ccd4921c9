// The SHA-256 of a file.
#pragma once

#include <string>

#include "core/fs.h"

namespace lockstep::checkpoint {

// 64 lower-case digits. The file is read in pieces, not mapped: somebody may be writing it. DataError.
std::string file_sha256(const fs::Path& file);

}  // namespace lockstep::checkpoint
