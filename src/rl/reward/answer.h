// The answer that a rule reads in a response, as a text: what majorities vote on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rl/reward/rule.h"

namespace lockstep::rl {

// math, deepscaler, number, gsm8k, dapo, gpqa and exact, boxed or not. The others judge a response as a whole.
bool has_answers(const RewardRule& rule);

// Without white space around it. nullopt: the response has none, or the rule reads none.
std::optional<std::string> answer_of(const RewardRule& rule, std::string_view response);

}  // namespace lockstep::rl
