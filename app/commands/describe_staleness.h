// What --dry-run says of rollouts that are sampled ahead of training.
#pragma once

#include <iosfwd>

#include "recipes/staleness.h"

namespace lockstep::commands {

void describe_staleness(const recipes::StalenessRule& rule, std::ostream& out);  // nothing where there is none

}  // namespace lockstep::commands
