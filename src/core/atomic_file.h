// Atomic writing of a file that is never whole in memory; beside fs::write_file_atomic of bytes, in core/fs.cpp.
#pragma once

#include <functional>
#include <string_view>

#include "core/fs.h"

namespace lockstep::fs {

// fill(append) appends piece by piece to a temporary file beside `path`, which is fsynced and renamed over `path`. On
// any exception it is removed and `path` is as before. Creates missing parent directories. ResourceError.
using Append = std::function<void(std::string_view bytes)>;
void write_file_atomic(const Path& path, const std::function<void(const Append& append)>& fill);

}  // namespace lockstep::fs
