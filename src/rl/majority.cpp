#include "rl/majority.h"

#include <algorithm>

namespace lockstep::rl {

namespace {

// Of one prompt: the first sample of the most frequent answer.
size_t elected(std::span<const std::optional<std::string>> answers) {
  size_t best = 0;
  int64_t most = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) continue;
    const int64_t votes = std::ranges::count(answers, answers[i]);
    if (votes > most) best = i, most = votes;
  }
  return best;
}

}  // namespace

std::optional<double> majority_reward(std::span<const std::optional<float>> rewards,
                                      std::span<const std::optional<std::string>> answers, int64_t n) {
  const auto size = static_cast<size_t>(n);
  double sum = 0, prompts = 0;
  for (size_t first = 0; first + size <= rewards.size(); first += size) {
    const auto group = rewards.subspan(first, size);
    if (!std::ranges::all_of(group, [](const auto& reward) { return reward.has_value(); })) continue;
    sum += static_cast<double>(*group[elected(answers.subspan(first, size))]);
    ++prompts;
  }
  return prompts > 0 ? std::optional(sum / prompts) : std::nullopt;
}

}  // namespace lockstep::rl
