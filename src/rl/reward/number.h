// --rm-type number: the last number, wherever it stands. Our own rule, for models that were not taught to box answers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rl {

// The answer in a response: what is in the last \boxed{}, if it is closed, else behind the last "####", else the last
// number. White space and $ removed. nullopt: no answer.
std::optional<std::string> number_answer(std::string_view response);

// Equal as decimals ("7.0" = "7" = "+007", "1,000" = "1e3", ".5" = "0.50"; commas do not count) if both are decimals,
// else as strings.
bool same_number(const std::string& a, const std::string& b);

// 1: the answer of the response is that of the label (extract.h); 0: it is another, or there is none. nullopt: the
// label has none.
std::optional<float> grade_number(std::string_view response, std::string_view label);

}  // namespace lockstep::rl
