#include "recipes/algorithm.h"

namespace lockstep::recipes {

namespace {

template <class Value>
void add_unless(OrderedJson& settings, const char* name, const Value& value, const Value& usual) {
  if (value != usual) settings[name] = value;
}

std::vector<double> loss_shape(const train::PolicyLoss& loss) {
  return {loss.unbiased_kl ? 1.0 : 0.0,
          loss.absolute_bounds ? 1.0 : 0.0,
          loss.sapo.positive,
          loss.sapo.negative,
          loss.dppo.ratio_cap,
          loss.mask.low,
          loss.mask.high,
          loss.mask.kl,
          loss.vespo.k_positive,
          loss.vespo.l_positive,
          loss.vespo.k_negative,
          loss.vespo.l_negative,
          loss.dro_beta,
          loss.sequence_mask.on ? 1.0 : 0.0,
          loss.sequence_mask.delta,
          loss.sequence_mask.from_sampler ? 1.0 : 0.0};
}

std::vector<double> row_shares(const train::RowChoice& choice) {
  return {choice.share, choice.cov_low, choice.cov_high, choice.penalty};
}

std::vector<double> correction_numbers(const rl::Correction& correction) {
  std::vector<double> numbers = {correction.veto, correction.normalize ? 1.0 : 0.0};
  for (const rl::CorrectionRule& rule : correction.rules)
    numbers.insert(numbers.end(), {static_cast<double>(rule.measure), static_cast<double>(rule.level),
                                   static_cast<double>(rule.action), rule.low, rule.high});
  return numbers;
}

std::vector<double> entropy_numbers(const rl::EntropyControl& control) {
  return {control.on ? 1.0 : 0.0, control.target, control.low, control.high, control.step};
}

std::vector<double> rule_numbers(const rl::RewardRule& rule) {
  return {static_cast<double>(rule.ngram), rule.repetition_penalty, static_cast<double>(rule.overlong_length),
          static_cast<double>(rule.overlong_cache)};
}

// Not where a service is and how long it is waited for.
void add_reward(OrderedJson& settings, const rl::RewardConfig& reward) {
  const rl::RewardConfig usual;
  add_unless(settings, "--multi-objective-aggregation", static_cast<int64_t>(reward.sum),
             static_cast<int64_t>(usual.sum));
  add_unless(settings, "parameters of --rm-type", rule_numbers(reward.parameters), rule_numbers(usual.parameters));
  add_unless(settings, "--reward-command", reward.command, usual.command);
  add_unless(settings, "--custom-rm-path", reward.python_path, usual.python_path);
  add_unless(settings, "--group-rm", reward.groups, usual.groups);
  add_unless(settings, "--reward-key", reward.reward_key, usual.reward_key);
  add_unless(settings, "--judge-model", reward.judge_model, usual.judge_model);
  add_unless(settings, "--judge-prompt", reward.judge_prompt_file, usual.judge_prompt_file);
  add_unless(settings, "--judge-max-tokens", reward.judge_max_tokens, usual.judge_max_tokens);
  add_unless(settings, "--code-timeout", reward.code_timeout_s, usual.code_timeout_s);
  add_unless(settings, "--code-memory-mb", reward.code_memory_mb, usual.code_memory_mb);
}

}  // namespace

OrderedJson algorithm_settings(const RlOptions& o) {
  const RlOptions usual;
  OrderedJson settings = OrderedJson::object();
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  add_unless(settings, "--advantage-estimator", std::string(rl::estimator_name(o.advantage.estimator)),
             std::string("grpo"));
  add_unless(settings, "--scale-rewards", number(o.advantage.group.spread), number(usual.advantage.group.spread));
  add_unless(settings, "--advantage-eps", o.advantage.group.eps, usual.advantage.group.eps);
  add_unless(settings, "--reward-std", o.advantage.group.population_std, usual.advantage.group.population_std);
  add_unless(settings, "--gamma", o.advantage.gamma, usual.advantage.gamma);
  add_unless(settings, "--normalize-advantages", o.advantage.whiten, usual.advantage.whiten);
  add_unless(settings, "--policy-loss", number(o.loss.objective), number(usual.loss.objective));
  add_unless(settings, "ratio of --policy-loss", number(o.loss.ratio_level), number(usual.loss.ratio_level));
  add_unless(settings, "rows of --policy-loss", number(o.row_choice.kind), number(usual.row_choice.kind));
  add_unless(settings, "--loss-agg-mode", number(o.reduction.kind), number(usual.reduction.kind));
  add_unless(settings, "--loss-scale-factor", o.reduction.length, usual.reduction.length);
  add_unless(settings, "--top-entropy-quantile", o.row_choice.top_entropy_quantile, 1.0);
  add_unless(settings, "--dynamic-sampling-filter-path", o.need_spread, usual.need_spread);
  add_unless(settings, "--over-sampling-batch-size", o.over_sampling, usual.over_sampling);
  add_unless(settings, "--mask-truncated-completions", o.mask_truncated, usual.mask_truncated);
  add_unless(settings, "--ref-update-interval", o.ref_update_interval, usual.ref_update_interval);
  add_unless(settings, "shape of --policy-loss", loss_shape(o.loss), loss_shape(usual.loss));
  add_unless(settings, "shares of --policy-loss", row_shares(o.row_choice), row_shares(usual.row_choice));
  add_unless(settings, "rules of --use-tis", correction_numbers(o.correction), correction_numbers(usual.correction));
  add_unless(settings, "target of --kl-coef", std::vector<double>{o.kl_control.target, o.kl_control.horizon},
             std::vector<double>{usual.kl_control.target, usual.kl_control.horizon});
  add_unless(settings, "control of --entropy-coef", entropy_numbers(o.entropy_control),
             entropy_numbers(usual.entropy_control));
  add_reward(settings, o.reward);
  add_unless(settings, "--on-reward-failure", number(o.on_reward_failure), number(usual.on_reward_failure));
  if (o.engine.kind) settings["--rollout-engine"] = rollout::engine_name(*o.engine.kind);
  add_unless(settings, "--ref-load", o.reference, usual.reference);
  add_unless(settings, "--use-opd", o.distill, usual.distill);
  add_unless(settings, "--opd-teacher-load", o.teacher, usual.teacher);
  add_unless(settings, "--opd-kl-coef", o.distill ? o.distill_coef : 1.0, 1.0);
  return settings;
}

rl::Algorithm algorithm_of(const RlOptions& options) {
  rl::Algorithm algorithm{.shaping = {.kl_coef = options.kl_reward_coef, .kl_type = options.loss.kl_type},
                          .advantage = options.advantage,
                          .distillation = options.distill ? options.distill_coef : 0,
                          .correction = options.correction,
                          .loss = options.loss,
                          .choice = options.row_choice,
                          .reduction = options.reduction,
                          .kl_control = options.kl_control,
                          .entropy_control = options.entropy_control,
                          .measure_kl = options.use_kl_loss};
  algorithm.advantage.group.center = options.normalize_rewards;
  algorithm.advantage.group.normalize_std = options.normalize_std;
  if (!options.use_kl_loss) algorithm.loss.kl_coef = 0;
  if (options.reward.sum == rl::RewardSum::normalize_then_sum)
    for (const rl::RewardChoice& choice : options.reward.choices)
      algorithm.objectives.push_back({.name = choice.name(), .weight = choice.weight});
  return algorithm;
}

}  // namespace lockstep::recipes
