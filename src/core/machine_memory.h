// How much memory this process may still take.
#pragma once

#include <cstdint>

#include "core/fs.h"

namespace lockstep {

// What the system says is available (MemAvailable: free, or in caches that it gives back), or what the tightest memory
// limit of a control group around this process leaves, if that is less; a container's limit is one. `root` stands for
// the directory "/". Nothing is known: 0.
int64_t available_memory(const fs::Path& root = "/");

}  // namespace lockstep
