// What checkpoints keep of the rules' options: a run goes on with the same.
#pragma once

#include <vector>

#include "rl/reward/rule.h"

namespace lockstep::rl {

// The numbers of RewardRule but for math_tolerance, which has a setting of its own. In rule.cpp. A new one comes last,
// and only where it is not what it is without its flag, so that earlier checkpoints still agree.
std::vector<double> rule_numbers(const RewardRule& rule);

}  // namespace lockstep::rl
