#include "rl/trajectory.h"

#include <algorithm>
#include <utility>

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

Trajectory make_trajectory(const rollout::Prompt& prompt, std::shared_ptr<const RewardRow> row,
                           const rollout::Sample& sample, const ResponseText& text) {
  const size_t before = prompt.tokens.size();
  Trajectory trajectory{.group = sample.prompt,
                        .tokens = prompt.tokens,
                        .mask = behind_prompt(before, 0.0f, std::vector<float>(sample.tokens.size(), 1.0f)),
                        .sampled_logprobs = behind_prompt(before, 0.0f, sample.logprobs),
                        .versions = behind_prompt(before, lora::PolicyId::kBase, sample.versions),
                        .row = std::move(row),
                        .index = sample.index,
                        .truncated = sample.finish == rollout::FinishReason::length};
  trajectory.tokens.insert(trajectory.tokens.end(), sample.tokens.begin(), sample.tokens.end());
  if (text.tokenizer != nullptr)
    trajectory.response = response_text(*text.tokenizer, sample.tokens, text.stop_token_ids);
  return trajectory;
}

RewardSample reward_sample(const Trajectory& trajectory) {
  return {.row = trajectory.row,
          .response = trajectory.response,
          .group = trajectory.group,
          .index = trajectory.index,
          .tokens = {trajectory.tokens.end() - trajectory.response_len(), trajectory.tokens.end()},
          .truncated = trajectory.truncated};
}

}  // namespace lockstep::rl
