// A directory that is there as a whole, or gone.
#pragma once

#include "core/read_root.h"

namespace lockstep::fs {

// Renames the directory to a temporary name beside it and removes it from there: whoever looks at `path` sees all of it
// or nothing, and what a killed process leaves behind is found by fs::sweep_temporaries. Nothing if it is not there.
// ResourceError: it cannot be renamed, and is as before. What cannot be removed afterwards is left under its temporary
// name.
void remove_directory_atomic(const Path& path);

}  // namespace lockstep::fs
