// --rm-type gpqa: the letter of a choice.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::rl {

// The letter A to J that a label is: "C", "c", "(C)", "\boxed{C}", "#### C". nullopt: anything else.
std::optional<char> choice_label(std::string_view label);

// 1: the response chose the letter `gold`, else 0. Behind its last </think>, the choice is the letter in the last
// \boxed{}; else the one after the last "answer", "option" or "choice" (any case) with "is" or ":" behind it if you
// like; else the last capital A to J. A letter counts if it stands alone, and no
// word follows it ("a bit", "I think"). Our own rule: slime's also finds letters inside words ("the answer depends" is
// D), takes the first place instead of the last, and looks for the text of the right choice.
double grade_gpqa(std::string_view response, char gold);

// The letter that a response chose. nullopt: none.
std::optional<char> gpqa_choice(std::string_view response);

}  // namespace lockstep::rl
