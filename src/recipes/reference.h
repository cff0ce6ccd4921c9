// A reference policy that is named by a path (slime's --ref-load): the base with the adapter off, or with another one.
#pragma once

#include <optional>
#include <string>

#include "recipes/options.h"

namespace lockstep::recipes {

// Whether the path is the base: the same directory or hub id, or a model of the same weights and config.json. Then
// there is nothing to say. Otherwise a KL that is `used` would be to another policy: ConfigError; without one, a line
// that says that nothing reads it. An adapter on the base is taken. Always ConfigError: nothing is there.
std::optional<std::string> check_reference(const std::string& path, const BaseOptions& base, bool used);

}  // namespace lockstep::recipes
