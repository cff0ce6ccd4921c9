// Flags of rewards, which train, eval and reward share.
#pragma once

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

Flag reward_flag(rl::RewardConfig& spec, std::string_view shown);  // --rm-type
std::vector<Flag> reward_flags(rl::RewardConfig& spec);            // the others

// "math" or "math:0.9,format:0.1"; ConfigError with `flag` as where.
std::vector<rl::RewardChoice> reward_choices(const std::string& flag, const std::string& text);

std::vector<Flag> training_reward_flags(recipes::RlOptions& options);

// Rules between them; ConfigError. `max_length`: tokens of the longest response, 0 where the command knows none. The
// notes say how verdicts differ from those of the system whose name a rule has. --custom-rm-path goes before --rm-type,
// as in slime.
void check_reward(rl::RewardConfig& spec, int64_t max_length, Classified& given);

}  // namespace lockstep::cli
