#include "recipes/iteration_line.h"

#include "recipes/rollout_log.h"
#include "recipes/rollout_metrics.h"

namespace lockstep::recipes {

OrderedJson iteration_line(const RlOptions& options, const IterationFacts& facts) {
  const SampledRollout& sampled = facts.sampled;
  const rl::TrainReport& trained = facts.trained;
  OrderedJson line = rollout_metrics(facts.step, sampled.rollout, trained, facts.iteration_ms);
  const bool recomputed = !facts.exact_logprobs || (options.async.on && options.async.recompute_policy);
  if (recomputed && facts.policys_logprobs) add_mismatch(line, trained.mismatch);
  if (options.need_spread || options.on_reward_failure == rl::RewardFailure::drop_group)
    line.update({{"dynamic_sampling/rounds", sampled.gates.rounds},
                 {"dynamic_sampling/sampled_groups", sampled.gates.sampled},
                 {"dynamic_sampling/dropped_groups", sampled.gates.dropped}});
  if (options.mask_truncated) line["masked_truncated"] = sampled.masked;
  add_pass_rates(line, "passrate/", sampled.pass_rates);
  if (options.kl_control.target != 0) line["kl_coef"] = trained.next.kl_reward;
  if (options.entropy_control.on) line["entropy_coef"] = trained.next.entropy;
  if (options.correction.is_needed()) add_correction(line, trained);
  if (options.use_kl_loss) line["kl_loss"] = of_actor(trained, trained.reference_kl);
  if (options.loss.sequence_mask.on) line["opsm_clipfrac"] = of_actor(trained, trained.sequence_mask);
  if (facts.abandoned_steps > 0) line["abandoned_steps"] = facts.abandoned_steps;
  if (const auto imbalance = trained.rank_load.imbalance()) line["rank_imbalance"] = *imbalance;
  add_rollout_metrics(line, sampled.rollout.trajectories, facts.version);
  return line;
}

}  // namespace lockstep::recipes
