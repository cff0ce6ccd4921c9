// How much more memory this process may take.
#pragma once

#include <cstdint>

#include "core/fs.h"

namespace lockstep {

// The memory that the system reports as available (MemAvailable: free, or in reclaimable caches) or, if less, what the
// tightest memory limit of a control group of this process leaves; a container's limit is one. `root` replaces the
// directory "/". 0 if nothing is known.
int64_t available_memory(const fs::Path& root = "/");

// The memory that this process holds (its resident set). 0 if nothing is known.
int64_t resident_memory();

}  // namespace lockstep
