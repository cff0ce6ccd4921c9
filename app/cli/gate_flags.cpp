#include "cli/gate_flags.h"

#include <fmt/format.h>

#include <tuple>

#include "core/error.h"

namespace lockstep::cli {

namespace {

void require_filter(const std::string& path) {
  const std::string name = path.substr(path.rfind('.') == path.npos ? 0 : path.rfind('.') + 1);
  if (name == "check_reward_nonzero_std") return;
  throw ConfigError({.what = "not available: a filter in Python",
                     .where = "--dynamic-sampling-filter-path",
                     .got = path,
                     .wanted = "a path that ends in check_reward_nonzero_std"});
}

}  // namespace

std::vector<Flag> gate_flags(GateForm& form, recipes::RlOptions& o) {
  return {
      {"--dynamic-sampling-filter-path", "NAME", text(form.filter),
       "check_reward_nonzero_std: only groups whose rewards differ are trained on; prompts are sampled until there "
       "are enough"},
      {"--over-sampling-batch-size", "N", number(o.over_sampling, 1, 1'000'000),
       "prompts sampled at a time for it (--rollout-batch-size)"},
      {"--max-filter-rounds", "N", number(o.max_filter_rounds, 1, 1'000'000),
       "after so many rounds without enough groups the run ends"},
      {"--easy-threshold", "X", number(o.difficulty.easy, -1e6, 1e6),
       "prompts whose last samples earned at least X on average are easy: --easy-fraction of them are read (no pools)"},
      {"--hard-threshold", "X", number(o.difficulty.hard, -1e6, 1e6), "the same at most X: hard, --hard-fraction"},
      {"--easy-fraction", "F", number(o.difficulty.easy_fraction, 0, 1),
       "easy prompts of a rollout, at most this share"},
      {"--hard-fraction", "F", number(o.difficulty.hard_fraction, 0, 1), "hard ones"},
      {"--mask-truncated-completions", "", toggle(o.mask_truncated),
       "samples that were cut at their longest learn nothing (overlong filtering)"},
      {"--log-passrate", "", toggle(o.log_passrate), "pass@k of rollouts and evaluations in metrics.jsonl"}};
}

std::vector<Flag> adaptive_flags(GateForm& form, recipes::RlOptions& o) {
  rl::EntropyControl& entropy = o.entropy_control;
  return {
      {"--use-adaptive-kl", "", toggle(form.adaptive_kl), "--kl-coef follows a target, as verl's kl_ctrl adaptive"},
      {"--kl-target", "X", number(o.kl_control.target, kAboveZero, 1e6), "mean KL of a token that it aims at (0.1)"},
      {"--kl-horizon", "N", number(o.kl_control.horizon, kAboveZero, 1e12), "samples in which it may move"},
      {"--use-adaptive-entropy", "", toggle(entropy.on), "--entropy-coef follows a target, as TRL's"},
      {"--entropy-target", "X", number(entropy.target, 0, 1000), "mean entropy of a token that it aims at"},
      {"--entropy-coef-min", "X", number(entropy.low, -10, 10), "its smallest value"},
      {"--entropy-coef-max", "X", number(entropy.high, -10, 10), "its largest value"},
      {"--entropy-coef-delta", "X", number(entropy.step, 0, 10), "its change at a step"},
      {"--ref-update-interval", "N", number(o.ref_update_interval, 1, kMany),
       "rollouts after which the reference becomes the actor (never)"}};
}

void resolve_gates(const GateForm& form, recipes::RlOptions& o, std::vector<std::string>& notes) {
  constexpr double kTarget = 0.1;  // verl's
  if (!form.filter.empty()) require_filter(form.filter);
  o.need_spread = !form.filter.empty();
  if (o.over_sampling > 0 && o.over_sampling < o.rollout_batch_size)
    throw ConfigError({.what = "over-sampling asks for fewer prompts than a rollout has",
                       .where = "--over-sampling-batch-size",
                       .got = shown_number(o.over_sampling),
                       .wanted = fmt::format("at least {}", o.rollout_batch_size)});
  if (o.over_sampling > o.rollout_batch_size && !o.need_spread && !o.partial.on && !o.async.on) {
    notes.push_back(
        "--over-sampling-batch-size: batches fill in the order of their prompts, so that nothing is over-sampled "
        "without "
        "--dynamic-sampling-filter-path");
    o.over_sampling = 0;
  }
  const rl::DifficultyOptions& pools = o.difficulty;
  for (const auto& [fraction, threshold, flag, other] :
       {std::tuple{pools.easy_fraction, pools.easy, "--easy-fraction", "--easy-threshold"},
        std::tuple{pools.hard_fraction, pools.hard, "--hard-fraction", "--hard-threshold"}})
    if (fraction != 0 && !threshold)
      throw ConfigError({.what = fmt::format("{} needs {}", flag, other), .where = flag, .attempt = other});
  if (pools.easy && pools.hard && *pools.hard >= *pools.easy)
    throw ConfigError({.what = "a prompt would be easy and hard",
                       .where = "--hard-threshold",
                       .got = shown_number(*pools.hard),
                       .wanted = "below --easy-threshold " + shown_number(*pools.easy)});
  if (pools.easy_fraction + pools.hard_fraction > 1)
    throw ConfigError({.what = "shares of easy and hard prompts are more than a rollout", .where = "--hard-fraction"});
  if (o.need_spread && o.n_samples < 2)
    throw ConfigError({.what = "rewards of one sample cannot differ",
                       .where = "--n-samples-per-prompt",
                       .got = "1",
                       .wanted = "at least 2 with --dynamic-sampling-filter-path"});
  if (form.adaptive_kl && o.kl_reward_coef == 0)
    throw ConfigError({.what = "--use-adaptive-kl needs --kl-coef, where it begins", .where = "--use-adaptive-kl"});
  if (!form.adaptive_kl && o.kl_control.target != 0)
    throw ConfigError({.what = "--kl-target needs --use-adaptive-kl", .where = "--kl-target"});
  if (form.adaptive_kl && o.kl_control.target == 0) o.kl_control.target = kTarget;
  if (o.entropy_control.low > o.entropy_control.high)
    throw ConfigError({.what = "bounds of the entropy coefficient are not in order", .where = "--entropy-coef-min"});
  if (o.ref_update_interval > 0 && !o.use_kl_loss && o.kl_reward_coef == 0)
    throw ConfigError({.what = "--ref-update-interval needs a KL to the reference",
                       .where = "--ref-update-interval",
                       .attempt = "--use-kl-loss or --kl-coef"});
}

}  // namespace lockstep::cli
