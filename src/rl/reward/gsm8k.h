// --rm-type gsm8k: a number behind "####".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rl {

// 1: the last number behind "#### " in the last 300 characters is the label's, as text and without commas; else 0. The
// label's stands behind its last "####", else it is the whole label. Source: verl's gsm8k rule, strict.
double grade_gsm8k(std::string_view response, std::string_view label);

// The response's number. nullopt: there is none.
std::optional<std::string> gsm8k_answer(std::string_view response);

}  // namespace lockstep::rl
