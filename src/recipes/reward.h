// Rewards computed from text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "recipes/options.h"

namespace lockstep::recipes {

// The answer in a text: the contents of the last \boxed{} (braces matched) if any, else the rest of the line after the
// last "####", else the last number. Commas, $ and spaces removed. nullopt: no answer.
std::optional<std::string> extract_answer(std::string_view text);

// Equal as decimals ("7.0" = "7", "-0" = "0", ".5" = "0.50") if both are decimals, else as strings.
bool same_answer(const std::string& a, const std::string& b);

// math:  1 if response and label have the same answer, else 0 (a response without an answer gets 0).
// exact: 1 if the response, without surrounding white space, is the label.
float reward(RewardType type, std::string_view response, std::string_view label);

}  // namespace lockstep::recipes
