// --rm-type deepscaler: math behind the thought.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::rl {

// math (math.h) of what stands behind the last </think>, else between the first "###Response" and the next; 0 if there
// is neither. nullopt: the label has no answer. Source: DeepScaleR's rule as in slime and miles, with our equality.
std::optional<double> grade_deepscaler(std::string_view response, std::string_view label, double tolerance);

// Where the rule looks for the answer; empty if there is no such part.
std::string_view deepscaler_solution(std::string_view response);

}  // namespace lockstep::rl
