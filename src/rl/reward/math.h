// --rm-type math: the rule of slime and miles (their grade_answer_verl): the response must box its answer, and the
// boxed LaTeX is compared with the label's. What is equal is decided exactly, without an algebra system
// (math_equality.h), so some verdicts are not theirs: docs/rewards.md lists them.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::rl {

// 1: what is in the last \boxed{} of the response equals the answer of the label (extract.h); 0: it does not, or
// nothing is boxed. nullopt: the label has no answer. `tolerance`: difference allowed between two numbers, relative to
// the label's; 0: none. Takes at most about a tenth of a second, whatever the texts are, besides time that grows with
// their length.
std::optional<float> grade_math(std::string_view response, std::string_view label, double tolerance = 0);

}  // namespace lockstep::rl
