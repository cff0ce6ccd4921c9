// --rm-type f1: words in common.
#pragma once

#include <string_view>

namespace lockstep::rl {

// 2 p r / (p + r), p and r the shares of the response's and of the label's words that the other has too, counted as
// often as they occur. Words: ASCII letters small, ASCII punctuation and the words a, an, the taken away. 0 if one of
// the two is "yes", "no" or "noanswer" and the other is not the same. Source: SQuAD's evaluation (arXiv 1606.05250), as
// in slime and miles; letters beyond ASCII keep their case.
double grade_f1(std::string_view response, std::string_view label);

}  // namespace lockstep::rl
