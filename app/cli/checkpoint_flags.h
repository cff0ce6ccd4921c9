// When a run saves, what stays, and what it goes on from.
#pragma once

#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

std::vector<Flag> checkpoint_flags(recipes::SaveOptions& save);
// ConfigError: a flag about saving without --save, or about resuming without --load.
void check_save(const recipes::SaveOptions& save, const Classified& given);

}  // namespace lockstep::cli
