#include "rl/trajectory.h"

#include <algorithm>

namespace lockstep::rl {

namespace {

// Zeros (or what stands for nothing) for the prompt, then one value per token of the response.
template <class T>
std::vector<T> behind_prompt(size_t prompt_tokens, T nothing, const std::vector<T>& of_response) {
  std::vector<T> all(prompt_tokens, nothing);
  all.insert(all.end(), of_response.begin(), of_response.end());
  return all;
}

}  // namespace

int64_t Trajectory::response_len() const {
  return std::ranges::count(mask, 1.0f);
}

std::string response_text(const text::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          std::span<const int32_t> stop_token_ids) {
  if (!tokens.empty() && std::ranges::find(stop_token_ids, tokens.back()) != stop_token_ids.end())
    tokens = tokens.first(tokens.size() - 1);
  return tokenizer.decode(tokens, true);
}

std::vector<Trajectory> make_trajectories(std::span<const rollout::Prompt> prompts, std::span<const std::string> labels,
                                          std::span<const rollout::Sample> samples, const ResponseText& text) {
  std::vector<Trajectory> trajectories;
  for (const rollout::Sample& sample : samples) {
    const std::vector<int32_t>& prompt = prompts[static_cast<size_t>(sample.prompt)].tokens;
    Trajectory trajectory{.group = sample.prompt,
                          .tokens = prompt,
                          .mask = behind_prompt(prompt.size(), 0.0f, std::vector<float>(sample.tokens.size(), 1.0f)),
                          .sampled_logprobs = behind_prompt(prompt.size(), 0.0f, sample.logprobs),
                          .versions = behind_prompt(prompt.size(), lora::PolicyId::kBase, sample.versions)};
    trajectory.tokens.insert(trajectory.tokens.end(), sample.tokens.begin(), sample.tokens.end());
    if (text.tokenizer != nullptr)
      trajectory.response = response_text(*text.tokenizer, sample.tokens, text.stop_token_ids);
    if (!labels.empty()) trajectory.label = labels[static_cast<size_t>(sample.prompt)];
    trajectories.push_back(std::move(trajectory));
  }
  return trajectories;
}

}  // namespace lockstep::rl
