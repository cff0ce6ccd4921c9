// Flags of rewards, which train, eval and reward share.
#pragma once

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

Flag reward_flag(rl::RewardRule& rule, std::string_view shown);  // --rm-type
std::vector<Flag> rule_flags(rl::RewardRule& rule);              // what single rules are told
Flag reward_failure_flag(rl::RewardFailure& policy);

// Rules between them; ConfigError. `max_length`: tokens of the longest response, 0 where the command knows none. The
// notes say how verdicts differ from those of the system whose name a rule has.
void check_reward(rl::RewardRule& rule, int64_t max_length, Classified& given);

}  // namespace lockstep::cli
