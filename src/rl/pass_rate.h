// How often at least one of k samples of a prompt is right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::rl {

struct PassRate {
  int64_t k = 1;
  double rate = 0;
};

// For k = 1, 2, 4, ... up to n and n itself: the mean over prompts of 1 - C(n - c, k) / C(n, k), c the number of a
// prompt's n samples whose reward is 1 or more. A prompt with an unknown reward is left out; nothing if none is left.
// rewards: n of each prompt, side by side. Source: arXiv 2107.03374 eq. 1; slime's --log-passrate.
std::vector<PassRate> pass_rates(std::span<const std::optional<float>> rewards, int64_t n);

}  // namespace lockstep::rl
