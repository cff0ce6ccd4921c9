// --rm-type dapo: an integer behind "Answer:".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rl {

// The integer that a label means: its number without what follows the point. nullopt: it is no finite number.
std::optional<std::string> dapo_gold(std::string_view label);

// 1: what stands behind the last "Answer:" (any case, to the end of its line) in the last 300 characters is the integer
// `gold`, once words of units, \text, thousands commas and the like are taken away; -1: it is not, or there is none.
// Source: the verifier of DAPO (arXiv 2503.14476), with slime's verdicts.
double grade_dapo(std::string_view response, const std::string& gold);

// What a response answers, so cleaned. nullopt: there is no "Answer:".
std::optional<std::string> dapo_answer(std::string_view response);

}  // namespace lockstep::rl
