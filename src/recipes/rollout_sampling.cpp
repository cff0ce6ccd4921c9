#include "recipes/rollout_sampling.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::recipes {

namespace {

std::vector<std::optional<float>> rewards_of(const rl::Rollout& rollout) {
  std::vector<std::optional<float>> rewards;
  for (const rl::Trajectory& trajectory : rollout.trajectories) rewards.push_back(trajectory.reward);
  return rewards;
}

rollout::SamplingParams training_params(const RlOptions& options, std::span<const int32_t> stop_token_ids) {
  rollout::SamplingParams params = options.sampling;
  params.stop_token_ids.insert(params.stop_token_ids.end(), stop_token_ids.begin(), stop_token_ids.end());
  params.logprob_temperature = options.sampling.temperature;
  return params;
}

}  // namespace

void judge_samples(SampledRollout& sampled, const RlOptions& options) {
  if (options.log_passrate) sampled.pass_rates = rl::pass_rates(rewards_of(sampled.rollout), options.n_samples);
  sampled.masked = options.mask_truncated ? rl::mask_truncated(sampled.rollout.trajectories) : 0;
}

RolloutSampling::RolloutSampling(const RlOptions& options, const PromptSet& prompts,
                                 std::span<const int32_t> stop_token_ids, const rl::RlParts& parts)
    : options_(options),
      prompts_(prompts),
      parts_(parts),
      order_(options, static_cast<int64_t>(prompts.prompts.size())),
      params_(training_params(options, stop_token_ids)),
      gate_plan_{.need_spread = options.need_spread,
                 .need_rewards = options.on_reward_failure == rl::RewardFailure::drop_group,
                 .groups = options.rollout_batch_size,
                 .prompts = std::max(options.over_sampling, options.rollout_batch_size),
                 .max_rounds = options.max_filter_rounds} {}

rl::RolloutRequest RolloutSampling::request(const SamplingJob& job, int64_t first, int64_t count,
                                            std::map<int64_t, int64_t>& times) {
  rl::RolloutRequest request{
      .params = {.sampling = params_, .n = options_.n_samples, .rollout = static_cast<uint32_t>(job.rollout)},
      .policy = job.version.version()->policy,
      .greedy_baseline = options_.advantage.estimator == rl::Estimator::remax,
      .on_reward_failure = options_.on_reward_failure};
  for (const int64_t row : order_.rows(job.rows_begin, first, count)) {
    request.prompts.push_back(prompts_.prompts[static_cast<size_t>(row)]);
    request.prompts.back().first_sample = times[row]++ * options_.n_samples;
    request.rows.push_back(prompts_.rows[static_cast<size_t>(row)]);
  }
  return request;
}

SampledRollout RolloutSampling::sample(const SamplingJob& job, const rl::Watch& watch) {
  std::map<int64_t, int64_t> times;
  return judged(job, rl::gated_rollout(gate_plan_, [&](int64_t first, int64_t count) {
                  return rl::rl_collect(parts_, rl::rl_submit(parts_, request(job, first, count, times)), {}, watch);
                }));
}

std::unique_ptr<rl::PendingRollout> RolloutSampling::begin(const SamplingJob& job) {
  std::map<int64_t, int64_t> times;
  return rl::rl_submit(parts_, request(job, 0, gate_plan_.prompts, times));
}

SampledRollout RolloutSampling::collect(const SamplingJob& job, std::unique_ptr<rl::PendingRollout> pending,
                                        std::span<const std::unique_ptr<rl::PendingRollout>> beside,
                                        const rl::Watch& watch) {
  rl::Rollout rollout = rl::rl_collect(parts_, std::move(pending), beside, watch);
  return judged(job, rl::gated_rollout(gate_plan_, [&](int64_t, int64_t) { return std::move(rollout); }));
}

SampledRollout RolloutSampling::judged(const SamplingJob& job, rl::GatedRollout gated) {
  SampledRollout sampled{.rollout = std::move(gated.rollout),
                         .gates = gated.report,
                         .rows_end = job.rows_begin + order_.rows_read(gated.report),
                         .version = job.version.version()};
  sampled.exact_logprobs = parts_.sampler.capabilities().exact_logprobs;
  judge_samples(sampled, options_);
  return sampled;
}

}  // namespace lockstep::recipes
