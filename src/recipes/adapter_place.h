// Where an adapter lies below what a user names.
#pragma once

#include <optional>

#include "core/fs.h"

namespace lockstep::recipes {

// An adapter directory itself; that of an iteration, as this program, miles or vime saves it; that of the newest
// iteration of a save directory. nullopt: none of these. FormatError: the marker of the save directory is damaged.
std::optional<fs::Path> adapter_directory(const fs::Path& given);

}  // namespace lockstep::recipes
