#include "recipes/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace lockstep::recipes {

std::string response_text(const text::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          std::span<const int32_t> stop_token_ids) {
  if (!tokens.empty() && std::ranges::find(stop_token_ids, tokens.back()) != stop_token_ids.end())
    tokens = tokens.first(tokens.size() - 1);
  return tokenizer.decode(tokens, true);
}

EvalResult evaluate(rollout::Sampler& sampler, const lora::PolicyId& policy, const text::Tokenizer& tokenizer,
                    const EvalRequest& request, RunLog& log, const Control& control) {
  const rollout::GroupParams params{
      .sampling = request.sampling, .n = request.samples, .rollout = std::numeric_limits<uint32_t>::max()};
  const auto on_progress = [&](int64_t done, int64_t total) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted during evaluation"});
    log.progress(fmt::format("evaluating {}/{}", done, total));
  };
  const auto samples = rollout::sample_groups(sampler, request.prompts->prompts, params, policy, on_progress);
  EvalResult result;
  for (const rollout::Sample& sample : samples) {
    const auto prompt = static_cast<size_t>(sample.prompt);
    EvalExample example{.prompt = request.prompts->texts[prompt],
                        .response = response_text(tokenizer, sample.tokens, request.sampling.stop_token_ids),
                        .label = request.prompts->labels[prompt]};
    example.reward = grade(request.reward, example.response, example.label).value();  // read_prompts checked the label
    result.accuracy += example.reward;
    result.response_len += static_cast<double>(sample.tokens.size());
    if (sample.index == 0 && sample.prompt < request.num_examples) result.examples.push_back(std::move(example));
  }
  result.accuracy /= static_cast<double>(samples.size());
  result.response_len /= static_cast<double>(samples.size());
  log.progress("");
  return result;
}

}  // namespace lockstep::recipes
