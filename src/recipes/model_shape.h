// Launch scripts repeat config.json in Megatron's flags. Each is compared; a contradiction would train another model
// than the script says.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "recipes/options.h"

namespace lockstep::recipes {

// Model-shape flags of launch scripts (--num-layers 24 ...) that repeat config.json: ConfigError naming flag, its value
// and config.json's if they contradict. Pairs of (flag without dashes, value or "true").
void check_model_shape(const BaseOptions& options, const std::vector<std::pair<std::string, std::string>>& flags);

}  // namespace lockstep::recipes
