#include "cli/unread_flags.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace lockstep::cli {

namespace {

struct Reader {
  bool is_there = false;
  std::string_view needs;
  std::vector<std::string_view> flags;
};

// Rewards are divided by a standard deviation.
bool divides_by_std(const recipes::RlOptions& o) {
  using rl::Estimator;
  const Estimator estimator = o.advantage.estimator;
  return o.normalize_std &&
         (estimator == Estimator::pass_at_k || (estimator == Estimator::grpo && o.normalize_rewards));
}

// The mean of a group is taken off its rewards, unless --disable-rewards-normalization.
bool centers_by_flag(const recipes::RlOptions& o) {
  using rl::Estimator;
  const Estimator estimator = o.advantage.estimator;
  return o.reward.sum == rl::RewardSum::normalize_then_sum || estimator == Estimator::grpo ||
         estimator == Estimator::dr_grpo || estimator == Estimator::reinforce_plus_plus_baseline;
}

// Of --scale-rewards only batch says something that nobody might read.
bool reads_spread(const recipes::RlOptions& o) {
  return o.advantage.group.spread != rl::Spread::batch ||
         (divides_by_std(o) && o.reward.sum != rl::RewardSum::normalize_then_sum);
}

std::vector<Reader> readers(const recipes::RlOptions& o, const Classified& given) {
  using train::PolicyObjective;
  const auto loss = [&](PolicyObjective objective) { return o.loss.objective == objective; };
  const bool has_reference = o.use_kl_loss || o.kl_reward_coef != 0;
  const bool has_gate = o.need_spread || o.on_reward_failure == rl::RewardFailure::drop_group;
  // --debug-train-only says itself that nothing is evaluated.
  const bool evaluates = o.debug.train_only || (o.eval_interval > 0 && !o.eval_sets.empty());
  const auto is_given = [&](std::string_view flag) { return given.given(flag) != nullptr; };
  return {
      {train::name_of(o.loss.objective).has_clip_range,
       "a --policy-loss with a clip range",
       {"--eps-clip", "--eps-clip-high"}},
      {loss(PolicyObjective::clip), "--policy-loss vanilla, gspo or clip_cov", {"--eps-clip-c"}},
      {o.optimizer.schedule.style != train::DecayStyle::constant, "--lr-decay-style", {"--min-lr"}},
      {divides_by_std(o), "rewards that are divided by their deviation", {"--advantage-eps", "--reward-std"}},
      {centers_by_flag(o),
       "--advantage-estimator grpo, dr_grpo or reinforce_plus_plus_baseline",
       {"--disable-rewards-normalization"}},
      {reads_spread(o), "rewards that are divided by their deviation over the rollout", {"--scale-rewards"}},
      {is_given("--use-tis"), "--use-tis", {"--tis-clip", "--tis-clip-low"}},
      {is_given("--importance-sampling-mode"),
       "--importance-sampling-mode",
       {"--importance-sampling-clip-max", "--importance-sampling-clip-min"}},
      {is_given("--rollout-is"), "--rollout-is", {"--rollout-is-threshold"}},
      {evaluates,
       "--eval-interval and held-out sets",
       {"--skip-eval-before-train", "--n-samples-per-eval-prompt", "--eval-max-response-len", "--eval-temperature",
        "--eval-top-p", "--eval-top-k", "--eval-input-key", "--eval-min-new-tokens", "--eval-max-context-len",
        "--eval-max-prompt-len", "--eval-label-key", "--eval-tool-key", "--eval-reward-key"}},
      {loss(PolicyObjective::sapo), "--policy-loss sapo", {"--sapo-tau-pos", "--sapo-tau-neg"}},
      {loss(PolicyObjective::dppo_tv) || loss(PolicyObjective::dppo_kl),
       "--policy-loss dppo_tv or dppo_kl",
       {"--dppo-ratio-cap"}},
      {loss(PolicyObjective::dppo_mask),
       "--policy-loss prime",
       {"--dppo-kl-tau", "--dppo-mask-low", "--dppo-mask-high"}},
      {loss(PolicyObjective::dro), "--policy-loss dro", {"--dro-beta"}},
      {loss(PolicyObjective::vespo),
       "--policy-loss vespo",
       {"--vespo-k-pos", "--vespo-k-neg", "--vespo-lambda-pos", "--vespo-lambda-neg"}},
      {o.row_choice.kind == train::RowChoiceKind::clip_cov,
       "--policy-loss clip_cov",
       {"--clip-cov-lb", "--clip-cov-ub"}},
      {o.row_choice.kind == train::RowChoiceKind::kl_cov, "--policy-loss kl_cov", {"--ppo-kl-coef"}},
      {o.loss.sequence_mask.on && !o.loss.sequence_mask.from_sampler, "--use-opsm", {"--opsm-delta"}},
      {has_reference, "--use-kl-loss or --kl-coef", {"--kl-loss-type"}},
      {o.kl_control.target != 0, "--use-adaptive-kl", {"--kl-horizon"}},
      {o.entropy_control.on,
       "--use-adaptive-entropy",
       {"--entropy-target", "--entropy-coef-delta", "--entropy-coef-min", "--entropy-coef-max"}},
      {has_gate, "--dynamic-sampling-filter-path or --on-reward-failure drop-group", {"--max-filter-rounds"}},
      {o.distill,
       "--use-opd",
       {"--opd-type", "--opd-kl-coef", "--opd-teacher-key", "--opd-teacher-model", "--distillation-loss-max-clamp",
        "--distillation-log-prob-min-clamp", "--distillation-tail-mass-eps"}},
  };
}

void note_flags_without_reader(const std::vector<Reader>& readers, Classified& given) {
  for (const Reader& reader : readers) {
    if (reader.is_there) continue;
    for (const Occurrence& flag : given.used)
      for (const std::string_view unread : reader.flags)
        if (flag.flag == unread) given.notes.push_back(fmt::format("{}: not used without {}", unread, reader.needs));
  }
}

}  // namespace

void note_unread(const recipes::RlOptions& options, Classified& given) {
  note_flags_without_reader(readers(options, given), given);
}

void note_unread(const recipes::SftOptions& options, Classified& given) {
  note_flags_without_reader(
      {{options.optimizer.schedule.style != train::DecayStyle::constant, "--lr-decay-style", {"--min-lr"}},
       {options.rows.max_length.has_value(), "--max-seq-length", {"--truncation-mode"}},
       {options.shuffle, "--rollout-shuffle", {"--rollout-seed"}}},
      given);
}

}  // namespace lockstep::cli
