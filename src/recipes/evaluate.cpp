#include "recipes/evaluate.h"

#include <fmt/format.h>

#include <limits>
#include <span>

#include "rl/majority.h"
#include "rl/reward/answer.h"
#include "rl/reward_queue.h"
#include "rl/trajectory.h"

namespace lockstep::recipes {

std::string accuracy_text(const EvalResult& result) {
  return (result.accuracy ? fmt::format("accuracy {:.4f}", *result.accuracy) : "accuracy unknown") +
         (result.unknown > 0 ? fmt::format(" ({} rewards unknown; the first: {})", result.unknown, result.failure)
                             : "");
}

namespace {

// The answers of all samples, where each of them has a rule that reads answers.
std::optional<std::vector<std::optional<std::string>>> answers_of(std::span<const rl::RewardSample> samples,
                                                                  const rl::RewardRule* run) {
  std::vector<std::optional<std::string>> answers;
  for (const rl::RewardSample& sample : samples) {
    const auto own = rl::rule_of(sample.row->rm_type);
    const rl::RewardRule* rule = own ? &*own : run;
    if (rule == nullptr || !rl::has_answers(*rule)) return std::nullopt;
    answers.push_back(rl::answer_of(*rule, sample.response));
  }
  return answers;
}

}  // namespace

EvalResult evaluate(rollout::Sampler& sampler, const lora::PolicyId& policy, const text::Tokenizer& tokenizer,
                    const EvalRequest& request, RunLog& log, const Control& control) {
  const rollout::GroupParams params{
      .sampling = request.sampling, .n = request.samples, .rollout = std::numeric_limits<uint32_t>::max()};
  const auto on_progress = [&](int64_t done, int64_t total) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted during evaluation"});
    log.progress(fmt::format("evaluating {}/{}", done, total));
  };
  const auto samples = rollout::sample_groups(sampler, request.prompts->prompts, params, policy, on_progress);
  std::vector<rl::RewardSample> responses;
  for (const rollout::Sample& sample : samples) {
    const auto prompt = static_cast<size_t>(sample.prompt);
    responses.push_back(rl::reward_sample(
        rl::make_trajectory(request.prompts->prompts[prompt], request.prompts->rows[prompt], sample,
                            {.tokenizer = &tokenizer, .stop_token_ids = request.sampling.stop_token_ids})));
  }
  const auto answers = answers_of(responses, request.rule);
  const std::vector<rl::Score> scores =
      rl::grade_all(*request.reward, responses, static_cast<size_t>(request.samples),
                    [&](size_t graded) { on_progress(static_cast<int64_t>(graded), std::ssize(samples)); });
  EvalResult result;
  double sum = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (scores[i].value)
      sum += static_cast<double>(*scores[i].value);
    else if (++result.unknown == 1)
      result.failure = scores[i].failure;
    result.response_len += static_cast<double>(samples[i].tokens.size());
    if (samples[i].index == 0 && samples[i].prompt < request.num_examples)
      result.examples.push_back({.prompt = responses[i].row->prompt,
                                 .response = responses[i].response,
                                 .label = responses[i].row->label,
                                 .reward = scores[i].value});
  }
  std::vector<std::optional<float>> rewards;
  for (const rl::Score& score : scores) rewards.push_back(score.value);
  result.pass_rates = rl::pass_rates(rewards, request.samples);
  if (answers) result.majority = rl::majority_reward(rewards, *answers, request.samples);
  const int64_t known = std::ssize(samples) - result.unknown;
  if (known > 0) result.accuracy = sum / static_cast<double>(known);
  result.response_len /= static_cast<double>(samples.size());
  log.progress("");
  return result;
}

}  // namespace lockstep::recipes
