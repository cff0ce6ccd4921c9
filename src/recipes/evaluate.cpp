#include "recipes/evaluate.h"

#include <fmt/format.h>

#include <limits>

namespace lockstep::recipes {

EvalResult evaluate(rollout::Sampler& sampler, const lora::PolicyId& policy, const text::Tokenizer& tokenizer,
                    const EvalRequest& request, RunLog& log, const Control& control) {
  const rollout::GroupParams params{
      .sampling = request.sampling, .n = request.samples, .rollout = std::numeric_limits<uint32_t>::max()};
  const auto on_progress = [&](int64_t done, int64_t total) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted during evaluation"});
    log.progress(fmt::format("evaluating {}/{}", done, total));
  };
  const auto samples = rollout::sample_groups(sampler, request.prompts->prompts, params, policy, on_progress);
  const std::vector<rl::Trajectory> trajectories =
      rl::make_trajectories(request.prompts->prompts, request.prompts->labels, samples,
                            {.tokenizer = &tokenizer, .stop_token_ids = request.sampling.stop_token_ids});
  const std::vector<float> rewards = request.reward->grade(trajectories);
  EvalResult result;
  for (size_t i = 0; i < samples.size(); ++i) {
    result.accuracy += rewards[i];
    result.response_len += static_cast<double>(samples[i].tokens.size());
    if (samples[i].index == 0 && samples[i].prompt < request.num_examples)
      result.examples.push_back({.prompt = request.prompts->texts[static_cast<size_t>(samples[i].prompt)],
                                 .response = trajectories[i].response,
                                 .label = trajectories[i].label,
                                 .reward = rewards[i]});
  }
  result.accuracy /= static_cast<double>(samples.size());
  result.response_len /= static_cast<double>(samples.size());
  log.progress("");
  return result;
}

}  // namespace lockstep::recipes
