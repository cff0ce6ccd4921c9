#include "recipes/rl_settings.h"

#include "recipes/algorithm.h"

namespace lockstep::recipes {

OrderedJson rl_settings(const RlOptions& options, const PromptSet& prompts) {
  OrderedJson settings = {{"prompts of --prompt-data", static_cast<int64_t>(prompts.prompts.size())},
                          {"tokens and labels of --prompt-data", prompts.digest().substr(0, 16)},
                          {"--rollout-batch-size", options.rollout_batch_size},
                          {"--n-samples-per-prompt", options.n_samples},
                          {"--global-batch-size", options.training.global_batch_size},
                          {"--rollout-shuffle", options.shuffle},
                          {"--rollout-seed", options.sampling.seed},
                          {"--rollout-temperature", options.sampling.temperature},
                          {"--rollout-top-p", options.sampling.top_p},
                          {"--rollout-top-k", options.sampling.top_k},
                          {"--rollout-max-response-len", options.sampling.max_tokens},
                          {"--rollout-max-context-len", options.sampling.max_context},
                          {"--rollout-stop", options.sampling.stop},
                          {"--rollout-stop-token-ids", options.sampling.stop_token_ids},
                          {"--rm-type", options.reward.name()},
                          {"--math-tolerance", options.reward.parameters.math_tolerance},
                          {"--eps-clip", options.loss.clip_low},
                          {"--eps-clip-high", options.loss.clip_high},
                          {"--eps-clip-c", options.loss.clip_c},
                          {"--entropy-coef", options.loss.entropy_coef},
                          {"--kl-loss-coef", options.use_kl_loss ? options.loss.kl_coef : 0},
                          {"--kl-coef", options.kl_reward_coef},
                          {"--kl-loss-type", train::kl_type_name(options.loss.kl_type)},
                          {"--disable-rewards-normalization", !options.normalize_rewards},
                          {"--disable-grpo-std-normalization", !options.normalize_std}};
  if (!options.staleness.is_synchronous())
    settings.update({{"--max-staleness", options.staleness.max_staleness},
                     {"--update-weights-interval", options.staleness.update_interval}});
  if (options.partial.on)
    settings.update({{"--partial-rollout-tokens", options.partial.tokens},
                     {"--mask-offpolicy-in-partial-rollout", options.partial.mask_old}});
  if (options.async.on)
    settings.update({{"--fully-async", true},
                     {"--max-weight-staleness", options.async.max_staleness.value_or(-1)},
                     {"--use-rollout-logprobs", !options.async.recompute_policy}});
  settings.update(algorithm_settings(options));
  return settings;
}

}  // namespace lockstep::recipes
