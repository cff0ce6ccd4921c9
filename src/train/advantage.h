// Advantages from rewards.
#pragma once

#include <span>
#include <vector>

namespace lockstep::train {

// GRPO: rewards of one prompt's samples -> (r - mean) / (std + 1e-6), std unbiased; only centered if !normalize_std, if
// the group has one sample, or if all rewards are equal. Source: arXiv 2402.03300 section 4.1; constants as in slime.
std::vector<float> group_advantages(std::span<const float> rewards, bool center, bool normalize_std);

}  // namespace lockstep::train
