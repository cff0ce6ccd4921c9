#include "recipes/algorithm.h"

namespace lockstep::recipes {

namespace {

template <class Value>
void add_unless(OrderedJson& settings, const char* name, const Value& value, const Value& usual) {
  if (value != usual) settings[name] = value;
}

}  // namespace

OrderedJson algorithm_settings(const RlOptions& o) {
  const RlOptions usual;
  OrderedJson settings = OrderedJson::object();
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  add_unless(settings, "--advantage-estimator", std::string(rl::estimator_name(o.advantage.estimator)),
             std::string("grpo"));
  add_unless(settings, "--scale-rewards", number(o.advantage.group.spread), number(usual.advantage.group.spread));
  add_unless(settings, "--multi-objective-aggregation", number(o.reward.sum), number(usual.reward.sum));
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
