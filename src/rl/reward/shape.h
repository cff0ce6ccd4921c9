// Rewards for the form of a response, whatever it says.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::rl {

// --rm-type format. 1: the response begins with <think>, which stands there once, and has a </think>; else 0. Source:
// TRL's think_format_reward.
double grade_format(std::string_view response);

// --rm-type repetition. penalty x (1 - distinct / all) over the n-grams of the response's words (small ASCII letters,
// cut at white space); 0 for fewer words than n. Source: TRL's get_repetition_penalty_reward (arXiv 2502.03373).
double grade_repetition(std::string_view response, int64_t n, double penalty);

// --rm-type length. 1 - |length - wanted| / wanted, at least 0; in tokens. Our own rule.
double grade_length(int64_t length, int64_t wanted);

// --rm-type soft_overlong. 0 up to `most` - `cache` tokens, -1 beyond `most`, and linear between. Source: DAPO (arXiv
// 2503.14476), equation 13.
double grade_soft_overlong(int64_t length, int64_t most, int64_t cache);

}  // namespace lockstep::rl
