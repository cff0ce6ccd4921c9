// Where the adapter is that a path of a user means.
#pragma once

#include <optional>

#include "core/fs.h"

namespace lockstep::checkpoint {

// The adapter directory that `path` is or leads to: itself, the actor's in a checkpoint (of miles or vime: `adapter`),
// the newest checkpoint's in a save directory. Nothing: there is none. FormatError as latest_iteration.
std::optional<fs::Path> adapter_directory(const fs::Path& path);

// The directory `adapter` of an iteration that miles or vime saved. Nothing: the iteration has none, or is a checkpoint
// of ours.
std::optional<fs::Path> foreign_adapter_directory(const fs::Path& iteration);

}  // namespace lockstep::checkpoint
