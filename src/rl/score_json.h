// Scores as programs and services write them.
#pragma once

#include <string>

#include "core/json.h"
#include "rl/reward.h"

namespace lockstep::rl {

// A number; or an object, whose member `reward_key` is the value and whose numbers are the named parts. Without a
// reward_key an object's "score" is its value, as in verl. Anything else (null, true, "1", a number that no float
// holds) is unknown.
Score score_of_json(const Json& value, const std::string& reward_key);

// One line of text: at most 200 bytes of what somebody wrote, for messages.
std::string excerpt(std::string_view text);

// What one sample is in requests of programs: prompt, response, label, the row (if RewardRow::json says it), group,
// index, rollout, response_length, truncated, tokens.
OrderedJson sample_json(const RewardSample& sample);

}  // namespace lockstep::rl
