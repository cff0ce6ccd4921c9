// An adapter directory on an engine, for the commands that only sample.
#pragma once

#include <string>

#include "recipes/base.h"
#include "rollout/engine.h"

namespace lockstep::recipes {

// The version to sample with: that of the adapter, which the engine then holds, or Engine::kBase without a path.
// Tells control.info its notes. Throws what load_adapter and Engine::hold throw.
int64_t hold_adapter(rollout::Engine& engine, const std::string& path, const Base& base, const Control& control);

}  // namespace lockstep::recipes
