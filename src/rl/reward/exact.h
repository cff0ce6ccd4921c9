// --rm-type exact: the whole text.
#pragma once

#include <string_view>

namespace lockstep::rl {

// 1: the response, without white space around it, is the label; else 0.
float grade_exact(std::string_view response, std::string_view label);

}  // namespace lockstep::rl
