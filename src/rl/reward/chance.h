// --rm-type random, deterministic_random: what a run learns from nothing.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::rl {

// random: 0 or 1 with the same chance, a function of (rollout, prompt of the rollout, sample), so a resumed run draws
// what it would have drawn. slime and miles draw from Python's global generator.
double draw_reward(uint32_t rollout, int64_t group, int64_t index);

// deterministic_random: 0 or 1 with the same chance, always the same for the same prompt and response. By another hash
// than miles'.
double draw_reward(std::string_view prompt, std::string_view response);

}  // namespace lockstep::rl
