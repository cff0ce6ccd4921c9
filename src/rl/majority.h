// How often the answer that most samples of a prompt give is right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::rl {

// maj@n: the mean over prompts of the reward that the most frequent of its n answers got (of equally frequent ones, and
// of its samples, the first). A sample without an answer does not vote; a prompt without a vote counts as its first
// sample. A prompt with an unknown reward is left out; nullopt if none is left. rewards and answers: n of each prompt,
// side by side. Source: arXiv 2203.11171; verl's maj@n, whose votes are texts, too.
std::optional<double> majority_reward(std::span<const std::optional<float>> rewards,
                                      std::span<const std::optional<std::string>> answers, int64_t n);

}  // namespace lockstep::rl
