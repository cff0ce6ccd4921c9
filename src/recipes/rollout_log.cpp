#include "recipes/rollout_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/hash.h"
#include "recipes/step_line.h"

namespace lockstep::recipes {

namespace {

// Of the sampled tokens: runs that sample the same have the same.
std::string samples_digest(const rl::Rollout& rollout) {
  Sha256 hash;
  for (const rl::Trajectory& trajectory : rollout.trajectories)
    hash.update(std::as_bytes(std::span(trajectory.tokens)));
  return hash.hex().substr(0, 16);
}

double tokens_per_second(const rl::RolloutReport& sampled, double iteration_ms) {
  return 1000.0 * static_cast<double>(sampled.tokens) / iteration_ms;
}

}  // namespace

OrderedJson of_actor(const rl::TrainReport& trained, double value) {
  return trained.actor_trained ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson rollout_metrics(int64_t step, const rl::Rollout& rollout, const rl::TrainReport& trained,
                            double iteration_ms) {
  const rl::RolloutReport& sampled = rollout.report;
  OrderedJson line{{"step", step},
                   {"reward", or_null(sampled.reward)},
                   {"kl", or_null(trained.kl)},
                   {"entropy", of_actor(trained, trained.entropy)},
                   {"response_len", sampled.response_len},
                   {"logprob_diff", or_null(trained.logprob_diff)},
                   {"logprob_diff_max", or_null(trained.logprob_diff_max)},
                   {"pg_clipfrac", of_actor(trained, trained.clip_fraction)},
                   {"ppo_kl", of_actor(trained, trained.policy_kl)},
                   {"loss", of_actor(trained, trained.loss)},
                   {"pg_loss", of_actor(trained, trained.objective)},
                   {"version", sampled.version},
                   {"samples", samples_digest(rollout)},
                   {"grad_norm", of_actor(trained, trained.grad_norm)},
                   {"lr", of_actor(trained, trained.lr)},
                   {"rollout_ms", sampled.rollout_ms},
                   {"reward_ms", sampled.reward_ms},
                   {"train_ms", trained.train_ms},
                   {"publish_ms", trained.published.microseconds / 1000},
                   {"tokens_per_s", tokens_per_second(sampled, iteration_ms)}};
  line["reward_unknown"] = sampled.reward_unknown;
  for (const rl::RewardPartMean& part : sampled.reward_parts) line["reward/" + part.name] = part.mean;
  for (const rl::SecondTrainerReport& second : trained.seconds) line.update(second.metrics);
  if (trained.teacher_kl) line["opd_reverse_kl"] = *trained.teacher_kl;
  if (trained.distillation != 0) line["distillation_loss"] = trained.distillation;
  return line;
}

void add_mismatch(OrderedJson& line, const rl::Mismatch& mismatch) {
  line.update({{"mismatch_mean", mismatch.mean}, {"mismatch_max", mismatch.max}, {"mismatch_k3", mismatch.k3}});
}

void add_correction(OrderedJson& line, const rl::TrainReport& trained) {
  line.update({{"tis", trained.correction.mean_weight},
               {"tis_abs", trained.correction.distance},
               {"tis_clipfrac", trained.correction.changed},
               {"ois", of_actor(trained, trained.ratio)},
               {"ess_ratio", trained.correction.ess_ratio},
               {"train_rollout_logprob_abs_diff", trained.mismatch.mean},
               {"train_rollout_kl", trained.mismatch.k3}});
}

void add_pass_rates(OrderedJson& line, const std::string& prefix, std::span<const rl::PassRate> rates) {
  for (const rl::PassRate& rate : rates) line[fmt::format("{}pass@{}", prefix, rate.k)] = rate.rate;
}

std::string rollout_text(int64_t step, int64_t of, const rl::Rollout& rollout, const rl::TrainReport& trained,
                         double iteration_ms, const std::string& left) {
  const rl::RolloutReport& sampled = rollout.report;
  std::string line = rollout_line({.step = step,
                                   .of = of,
                                   .reward = sampled.reward,
                                   .entropy = trained.actor_trained ? std::optional(trained.entropy) : std::nullopt,
                                   .response_len = sampled.response_len,
                                   .logprob_diff = trained.logprob_diff_max,
                                   .tokens_per_s = tokens_per_second(sampled, iteration_ms),
                                   .kl = trained.kl,
                                   .left = left});
  for (const rl::SecondTrainerReport& second : trained.seconds)
    if (!second.text.empty())
      line += fmt::format("  {}{}", second.text, trained.actor_trained ? "" : ", only the " + second.name + " learns");
  return line;
}

std::string negative_groups_text(int64_t step, int64_t of, std::span<const rl::Trajectory> trajectories) {
  std::map<int64_t, double> sums;  // of known rewards, by group
  for (const rl::Trajectory& trajectory : trajectories)
    sums[trajectory.group] += static_cast<double>(trajectory.reward.value_or(0));
  const auto negative = std::ranges::count_if(sums, [](const auto& group) { return group.second < 0; });
  if (negative == 0) return "";
  return fmt::format(
      "note    rollout {}/{}: the mean reward of {} of {} groups is negative; max_rl divides by it, and such groups "
      "are "
      "trained towards their worst samples: it is for rewards that are not negative",
      step, of, negative, sums.size());
}

std::string unknown_rewards_text(int64_t step, int64_t of, int64_t samples, const rl::RolloutReport& sampled,
                                 const rl::TrainReport& trained) {
  return fmt::format("rollout {}/{}: {} of {} rewards unknown{}; the first: {}", step, of, sampled.reward_unknown,
                     samples, trained.skipped_steps > 0 ? fmt::format(", {} steps skipped", trained.skipped_steps) : "",
                     sampled.reward_failure);
}

}  // namespace lockstep::recipes
