// A reference policy that is named by a path (slime's --ref-load): the base with the adapter off, or with another one.
#pragma once

#include <optional>
#include <string>

#include "recipes/options.h"

namespace lockstep::recipes {

// Checks what --ref-load names. The base itself (the same directory or hub id, or a model with the same weights and
// config.json) and an adapter on the base are fine: nullopt. Another model cannot be the reference: ConfigError if the
// KL to it is `used`, else a line that says that nothing reads it. ConfigError in any case: nothing is at the path.
std::optional<std::string> check_reference(const std::string& path, const BaseOptions& base, bool used);

}  // namespace lockstep::recipes
