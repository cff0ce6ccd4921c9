#include "cli/algorithm_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace lockstep::cli {

namespace {

using rl::Estimator;
using train::PolicyObjective;
using train::ReductionKind;

constexpr std::string_view kEstimators =
    "grpo|gspo|cispo|dr_grpo|rloo|max_rl|opo|remax|gpg|grpo_passk|reinforce_plus_plus|reinforce_plus_plus_baseline|"
    "ppo|on_policy_distillation";
// Losses that are an objective with something beside it.
constexpr std::string_view kDerivedLosses = "gspo|clip_cov|kl_cov";
constexpr std::string_view kReductions =
    "seq-mean-token-mean|token-mean|token-sum|seq-mean-token-sum|seq-mean-token-sum-norm|grpo|dapo|dr_grpo";

Estimator estimator_of(const std::string& name) {
  for (const Estimator estimator :
       {Estimator::dr_grpo, Estimator::rloo, Estimator::max_rl, Estimator::opo, Estimator::remax, Estimator::gpg,
        Estimator::pass_at_k, Estimator::reinforce_plus_plus, Estimator::reinforce_plus_plus_baseline, Estimator::ppo,
        Estimator::on_policy_distillation})
    if (name == rl::estimator_name(estimator)) return estimator;
  return Estimator::grpo;  // gspo and cispo are losses beside it
}

ReductionKind reduction_of(const std::string& name) {
  if (name == "token-mean" || name == "dapo") return ReductionKind::token_mean;
  if (name == "token-sum") return ReductionKind::token_sum;
  if (name == "seq-mean-token-sum") return ReductionKind::sample_sum;
  if (name == "seq-mean-token-sum-norm" || name == "dr_grpo") return ReductionKind::fixed_length;
  return ReductionKind::sample_mean;
}

// The loss that the flags name: --policy-loss, slime's --pg-loss-type, or that of an estimator which is one.
std::string loss_name(const AlgorithmForm& form) {
  const bool estimator_is_loss = form.estimator == "gspo" || form.estimator == "cispo";
  const std::string pg = form.pg_loss_type == "reinforce" ? "reinforce" : form.pg_loss_type.empty() ? "" : "vanilla";
  if (!form.policy_loss.empty() && !pg.empty() && form.policy_loss != pg)
    throw ConfigError({.what = "two flags name the loss",
                       .where = "--policy-loss, --pg-loss-type",
                       .got = form.policy_loss + ", " + form.pg_loss_type,
                       .attempt = "keep one of them"});
  const std::string asked = form.policy_loss.empty() ? pg : form.policy_loss;
  if (estimator_is_loss && !asked.empty() && asked != form.estimator)
    throw ConfigError({.what = "the estimator names a loss of its own",
                       .where = "--advantage-estimator, --policy-loss",
                       .got = form.estimator + ", " + asked,
                       .attempt = "--advantage-estimator grpo with this loss"});
  if (estimator_is_loss) return form.estimator;
  return asked.empty() ? "vanilla" : asked;
}

std::string_view policy_loss_names() {
  static const std::string names = [] {
    std::string all;
    for (const train::PolicyObjectiveName& objective : train::kPolicyObjectives)
      all += std::string(objective.name) + "|";
    return all.append(kDerivedLosses);
  }();
  return names;
}

void set_objective(const std::string& name, const AlgorithmForm& form, recipes::RlOptions& o) {
  for (const train::PolicyObjectiveName& known : train::kPolicyObjectives)
    if (name == known.name) o.loss.objective = known.objective;
  if (name == "kl_cov") o.loss.objective = PolicyObjective::ratio;
  if (name == "gspo") o.loss.ratio_level = train::RatioLevel::sequence;
  if (name == "clip_cov") {
    o.row_choice.kind = train::RowChoiceKind::clip_cov;
    o.row_choice.share = form.clip_cov_share.value_or(o.row_choice.share);
  }
  if (name == "kl_cov") {
    o.row_choice.kind = train::RowChoiceKind::kl_cov;
    o.row_choice.share = form.kl_cov_share.value_or(o.row_choice.share);
  }
}

void check_clip(const AlgorithmForm& form, const std::string& loss, recipes::RlOptions& o,
                std::vector<std::string>& notes) {
  o.loss.clip_high = form.clip_high.value_or(o.loss.clip_low);
  if (form.clip_c && *form.clip_c <= 1)
    throw ConfigError({.what = "the dual clip must be above 1",
                       .where = "--eps-clip-c",
                       .got = shown_number(*form.clip_c),
                       .wanted = "above 1, such as 3"});
  o.loss.clip_c = form.clip_c.value_or(0);
  if (o.loss.absolute_bounds && loss != "cispo")
    throw ConfigError({.what = "--cispo-absolute-bounds needs the loss cispo", .where = "--cispo-absolute-bounds"});
  if (o.loss.absolute_bounds && o.loss.clip_low > o.loss.clip_high)
    throw ConfigError({.what = "the bounds of the ratio are not in order",
                       .where = "--eps-clip, --eps-clip-high",
                       .got = fmt::format("{}, {}", shown_number(o.loss.clip_low), shown_number(o.loss.clip_high)),
                       .wanted = "bounds of the ratio itself, such as 0 and 3"});
  if (loss == "cispo" && !o.loss.absolute_bounds && o.loss.clip_low < 1)
    notes.push_back(
        fmt::format("--policy-loss cispo: the ratio is also bounded from below, at {}; the paper bounds it from above "
                    "only (--eps-clip 1)",
                    shown_number(1 - o.loss.clip_low)));
}

void check_kl(recipes::RlOptions& o, std::vector<std::string>& notes) {
  if (o.kl_reward_coef != 0 && o.loss.kl_coef != 0)
    throw ConfigError({.what = "--kl-coef and --kl-loss-coef are both nonzero",
                       .where = "--kl-coef",
                       .got = fmt::format("{} and {}", shown_number(o.kl_reward_coef), shown_number(o.loss.kl_coef)),
                       .attempt = "keep one: KL in the reward or KL in the loss"});
  if (o.loss.kl_coef != 0 && !o.use_kl_loss)
    notes.push_back(fmt::format("--kl-loss-coef {}: not used without --use-kl-loss", shown_number(o.loss.kl_coef)));
  if (o.loss.unbiased_kl && !o.use_kl_loss) notes.push_back("--use-unbiased-kl: not used without --use-kl-loss");
  if (o.kl_reward_coef != 0 && !rl::has_token_rewards(o.advantage.estimator))
    notes.push_back(
        fmt::format("--kl-coef {}: with {} a sample's reward loses that much of its tokens' KL to the base before "
                    "advantages are made, as verl does; slime computes it and does not use it",
                    shown_number(o.kl_reward_coef), rl::estimator_name(o.advantage.estimator)));
}

void resolve_reduction(const AlgorithmForm& form, recipes::RlOptions& o, std::vector<std::string>& notes) {
  if (o.training.per_token_loss && !form.reduction.empty() && reduction_of(form.reduction) != ReductionKind::token_mean)
    throw ConfigError({.what = "two flags say how tokens become a loss",
                       .where = "--calculate-per-token-loss, --loss-agg-mode",
                       .got = form.reduction,
                       .attempt = "keep one of them"});
  o.reduction.kind = o.training.per_token_loss ? ReductionKind::token_mean : reduction_of(form.reduction);
  if (o.advantage.estimator == Estimator::dr_grpo && form.reduction.empty() && !o.training.per_token_loss)
    o.reduction.kind = ReductionKind::fixed_length;
  if (o.reduction.kind == ReductionKind::fixed_length) {
    o.reduction.length = form.scale_factor.value_or(static_cast<double>(o.sampling.max_tokens));
    notes.push_back(
        fmt::format("a sample's loss is the sum over its tokens divided by {} (--loss-scale-factor, else "
                    "--rollout-max-response-len), as in Dr. GRPO",
                    shown_number(o.reduction.length)));
  } else if (form.scale_factor) {
    throw ConfigError(
        {.what = "--loss-scale-factor needs --loss-agg-mode seq-mean-token-sum-norm", .where = "--loss-scale-factor"});
  }
}

void resolve_advantage(const AlgorithmForm& form, recipes::RlOptions& o, std::vector<std::string>& notes) {
  rl::AdvantageOptions& advantage = o.advantage;
  advantage.estimator = estimator_of(form.estimator);
  advantage.group.population_std = form.std_kind == "population";
  if (form.scale_rewards == "batch") advantage.group.spread = rl::Spread::batch;
  if (form.scale_rewards == "none") o.normalize_std = false;
  const bool discounts = advantage.estimator == Estimator::reinforce_plus_plus || advantage.estimator == Estimator::ppo;
  if (form.gamma && !discounts && *form.gamma != 1)
    notes.push_back(fmt::format("--gamma {}: {} does not discount", shown_number(*form.gamma), form.estimator));
  advantage.gamma = form.gamma.value_or(1);
  if (rl::always_whitens(advantage.estimator) && !advantage.whiten)
    notes.push_back(
        fmt::format("--advantage-estimator {}: advantages are whitened over the rollout, as "
                    "--normalize-advantages says",
                    form.estimator));
  if (o.n_samples > 1) return;
  if (advantage.estimator == Estimator::pass_at_k)
    throw ConfigError({.what = "--advantage-estimator grpo_passk compares samples of one prompt",
                       .where = "--n-samples-per-prompt",
                       .got = "1",
                       .wanted = "at least 2"});
  const bool group_of_one_is_zero =
      advantage.estimator == Estimator::grpo || advantage.estimator == Estimator::dr_grpo ||
      advantage.estimator == Estimator::max_rl || advantage.estimator == Estimator::reinforce_plus_plus_baseline;
  if (o.normalize_std && advantage.estimator == Estimator::grpo)
    notes.push_back("--n-samples-per-prompt 1: a group of one has no spread, rewards are not divided by it");
  o.normalize_std = false;
  if (o.normalize_rewards && group_of_one_is_zero)
    notes.push_back(
        "--n-samples-per-prompt 1: minus its own mean every reward is 0 (--disable-rewards-normalization keeps it)");
}

}  // namespace

std::vector<Flag> algorithm_flags(AlgorithmForm& form, recipes::RlOptions& o) {
  const auto set_kl = [&o](const std::string& name) { o.loss.kl_type = train::parse_kl_type(name); };
  const auto into = [](std::string& target) { return [&target](const std::string& name) { target = name; }; };
  return {
      {"--advantage-estimator", "NAME", choice(kEstimators, "grpo", into(form.estimator)),
       "grpo: a sample's reward against its group's; ppo: against a critic's; docs/rl.md has all"},
      {"--policy-loss", "NAME", choice(policy_loss_names(), "vanilla", into(form.policy_loss)),
       "vanilla: PPO's clipped ratio; verl's names, docs/rl.md has all"},
      {"--pg-loss-type", "NAME", choice("ppo|reinforce", "", into(form.pg_loss_type)),
       "slime's name of vanilla and reinforce"},
      {"--loss-agg-mode", "NAME", choice(kReductions, "seq-mean-token-mean", into(form.reduction)),
       "how tokens become a loss; verl's and TRL's names"},
      {"--loss-scale-factor", "N", number(form.scale_factor, kAboveZero, 1e9),
       "what seq-mean-token-sum-norm divides by (--rollout-max-response-len)"},
      {"--calculate-per-token-loss", "", toggle(o.training.per_token_loss), "mean over all tokens (of sample means)"},
      {"--global-batch-size", "N", number(o.training.global_batch_size, 1, kMany),
       "samples per optimizer step (a whole rollout)"},
      {"--num-steps-per-rollout", "N", number(o.num_steps_per_rollout, 1, kMany), "the same, counted in steps"},
      {"--eps-clip", "E", number(o.loss.clip_low, 0, 1), "ratios are clipped at 1 - E ..."},
      {"--eps-clip-high", "E", number(form.clip_high, 0, 1000), "... and 1 + E (as --eps-clip; DAPO 0.28)"},
      {"--eps-clip-c", "C", number(form.clip_c, 1, 1000), "dual clip for negative advantages, above 1 (off)"},
      {"--entropy-coef", "X", number(o.loss.entropy_coef, -10, 10), "entropy bonus"},
      {"--use-kl-loss", "", toggle(o.use_kl_loss), "KL to the base in the loss (coefficient 0: metric only)"},
      {"--kl-loss-coef", "X", number(o.loss.kl_coef, 0, 1000), "its coefficient"},
      {"--kl-loss-type", "TYPE", choice("k1|k2|k3|low_var_kl|abs|k3+|low_var_kl+|kl|mse", "k1", set_kl),
       "k1 | k2 | k3 | low_var_kl | abs | k3+ | low_var_kl+"},
      {"--use-unbiased-kl", "", toggle(o.loss.unbiased_kl),
       "KL in the loss is multiplied by the ratio to the old policy"},
      {"--kl-coef", "X", number(o.kl_reward_coef, 0, 1000), "KL to the base in the reward"},
      {"--gamma", "X", number(form.gamma, 0, 1), "reinforce_plus_plus, ppo: discount of later rewards (1)"},
      {"--normalize-advantages", "", toggle(o.advantage.whiten), "whiten advantages over the tokens of a rollout"},
      {"--scale-rewards", "KIND", choice("group|batch|none", "group", into(form.scale_rewards)),
       "whose standard deviation rewards are divided by; TRL's name"},
      {"--reward-std", "KIND", choice("unbiased|population", "unbiased", into(form.std_kind)), "over n - 1 or over n"},
      {"--advantage-eps", "X", number(o.advantage.group.eps, 0, 1), "added to it (TRL 1e-4)"},
      {"--disable-grpo-std-normalization", "", toggle(o.normalize_std, false), "do not divide by the group's spread"},
      {"--disable-rewards-normalization", "", toggle(o.normalize_rewards, false), "do not subtract the group's mean"}};
}

std::vector<Flag> loss_shape_flags(AlgorithmForm& form, recipes::RlOptions& o) {
  train::PolicyLoss& loss = o.loss;
  return {{"--cispo-absolute-bounds", "", toggle(loss.absolute_bounds),
           "cispo: --eps-clip and --eps-clip-high bound the ratio itself (TRL, Tinker)"},
          {"--sapo-tau-pos", "X", number(loss.sapo.positive, kAboveZero, 1000), "sapo: temperature where A > 0"},
          {"--sapo-tau-neg", "X", number(loss.sapo.negative, kAboveZero, 1000), "sapo: elsewhere"},
          {"--dppo-ratio-cap", "X", number(loss.dppo.ratio_cap, kAboveZero, 1e6), "dppo_tv, dppo_kl: largest ratio"},
          {"--dppo-mask-low", "X", number(loss.mask.low, 0, 1), "prime: how much a probability may fall where A <= 0"},
          {"--dppo-mask-high", "X", number(loss.mask.high, 0, 1), "prime: how much it may rise where A > 0"},
          {"--dppo-kl-tau", "X", number(loss.mask.kl, 0, 1000), "prime: factor of the squared log-ratio"},
          {"--dro-beta", "X", number(loss.dro_beta, 0, 1000), "dro: factor of half the squared log-ratio"},
          {"--vespo-k-pos", "X", number(loss.vespo.k_positive, 0, 1000), "vespo: power of the weight where A >= 0"},
          {"--vespo-lambda-pos", "X", number(loss.vespo.l_positive, 1e-4, 1000), "vespo: its decay there"},
          {"--vespo-k-neg", "X", number(loss.vespo.k_negative, 0, 1000), "vespo: power elsewhere"},
          {"--vespo-lambda-neg", "X", number(loss.vespo.l_negative, 1e-4, 1000), "vespo: decay elsewhere"},
          {"--clip-cov-ratio", "X", number(form.clip_cov_share, kAboveZero, 1), "clip_cov: share of the tokens (2e-4)"},
          {"--clip-cov-lb", "X", number(o.row_choice.cov_low, -1e6, 1e6), "clip_cov: of covariances above"},
          {"--clip-cov-ub", "X", number(o.row_choice.cov_high, -1e6, 1e6), "clip_cov: and below"},
          {"--kl-cov-ratio", "X", number(form.kl_cov_share, kAboveZero, 1), "kl_cov: share of the tokens (2e-4)"},
          {"--ppo-kl-coef", "X", number(o.row_choice.penalty, 0, 1000), "kl_cov: factor of |log-ratio| there"},
          {"--top-entropy-quantile", "X", number(o.row_choice.top_entropy_quantile, kAboveZero, 1),
           "share of the tokens, by entropy, that the policy gradient is of"}};
}

void resolve_algorithm(const AlgorithmForm& form, recipes::RlOptions& o, const Classified&,
                       std::vector<std::string>& notes) {
  const std::string loss = loss_name(form);
  set_objective(loss, form, o);
  if (form.clip_cov_share && loss != "clip_cov")
    throw ConfigError({.what = "--clip-cov-ratio needs --policy-loss clip_cov", .where = "--clip-cov-ratio"});
  if (form.kl_cov_share && loss != "kl_cov")
    throw ConfigError({.what = "--kl-cov-ratio needs --policy-loss kl_cov", .where = "--kl-cov-ratio"});
  if (o.row_choice.cov_low > o.row_choice.cov_high)
    throw ConfigError(
        {.what = "bounds of covariances are not in order",
         .where = "--clip-cov-lb, --clip-cov-ub",
         .got = fmt::format("{}, {}", shown_number(o.row_choice.cov_low), shown_number(o.row_choice.cov_high))});
  resolve_advantage(form, o, notes);
  check_clip(form, loss, o, notes);
  check_kl(o, notes);
  resolve_reduction(form, o, notes);
  if (o.row_choice.is_needed())
    notes.push_back("tokens are chosen by a forward pass over each optimizer step before it is taken");
}

}  // namespace lockstep::cli
