#include "recipes/algorithm.h"

#include <fmt/format.h>

#include <array>

#include "core/hidden_secrets.h"
#include "recipes/second_trainers.h"
#include "rl/reward/rule_numbers.h"

namespace lockstep::recipes {

namespace {

template <class Value>
void add_unless(OrderedJson& settings, const char* name, const Value& value, const Value& usual) {
  if (value != usual) settings[name] = value;
}

// Values of enums lie in checkpoints by name: a number would change its meaning with the order of the enum.
template <class Enum, size_t count>
std::string name_of(Enum value, const std::array<const char*, count>& names) {
  return names.at(static_cast<size_t>(value));
}

std::string objective_name(train::PolicyObjective objective) {
  return std::string(train::name_of(objective).name);
}

std::string reduction_name(train::ReductionKind kind) {
  return name_of(kind, std::array{"seq-mean-token-mean", "token-mean", "token-sum", "seq-mean-token-sum",
                                  "seq-mean-token-sum-norm"});
}

std::string rule_text(const rl::CorrectionRule& rule) {
  return fmt::format("{}:{}:{}:{}:{}", name_of(rule.measure, std::array{"ratio", "k1", "k2", "k3"}),
                     name_of(rule.level, std::array{"token", "seq_sum", "seq_mean", "seq_max"}),
                     name_of(rule.action, std::array{"truncate", "mask", "reject"}), rule.low, rule.high);
}

std::vector<double> row_shares(const train::RowChoice& choice) {
  return {choice.share, choice.cov_low, choice.cov_high, choice.penalty};
}

// The rules in their order, as --correction names them, and what applies to all.
std::vector<std::string> correction_texts(const rl::Correction& correction) {
  std::vector<std::string> texts;
  for (const rl::CorrectionRule& rule : correction.rules) texts.push_back(rule_text(rule));
  if (correction.veto != 0) texts.push_back(fmt::format("veto {}", correction.veto));
  if (correction.normalize) texts.push_back("normalize");
  return texts;
}

std::vector<double> entropy_numbers(const rl::EntropyControl& control) {
  return {control.on ? 1.0 : 0.0, control.target, control.low, control.high, control.step};
}

void add_distillation(OrderedJson& settings, const RlOptions& o) {
  const RlOptions usual;
  std::vector<std::string> servers;
  for (const TeacherServer& server : o.teacher_servers)
    servers.push_back(hide_secrets(server.name.empty() ? server.url : server.name + "=" + server.url));
  if (!servers.empty())
    settings["--opd-teacher-urls"] = servers.size() == 1 ? OrderedJson(servers[0]) : OrderedJson(servers);
  add_unless(settings, "--opd-teacher-model", o.teacher_model, usual.teacher_model);
  add_unless(settings, "--opd-teacher-key", o.teacher_key, usual.teacher_key);
  add_unless(settings, "--opd-kl-coef", o.distillation.coef, 1.0);
  add_unless(settings, "--opd-log-prob-top-k", o.distillation.top, usual.distillation.top);
  add_unless(settings, "--opd-top-k-strategy", std::string(rl::token_set_name(o.distillation.tokens)),
             std::string("only-student"));
  add_unless(settings, "--opd-reward-weight-mode", std::string(rl::token_weight_name(o.distillation.weight)),
             std::string("student_p"));
  const train::DistillTerm& term = o.loss.distill;
  if (term.kind == train::DistillKind::none) return;
  settings["--distillation-loss-mode"] = term.kind == train::DistillKind::estimator
                                             ? train::kl_type_name(term.estimator)
                                         : term.tail ? "forward_kl_topk_tail"
                                                     : "forward_kl_topk";
  if (term.tail) settings["--distillation-tail-mass-eps"] = term.tail_eps;
  settings["bounds of --distillation-loss-mode"] = std::vector<double>{term.max_value, term.min_logprob};
}

// Not where a service is and how long it is waited for.
void add_reward(OrderedJson& settings, const rl::RewardConfig& reward) {
  const rl::RewardConfig usual;
  add_unless(settings, "parameters of --rm-type", rl::rule_numbers(reward.parameters),
             rl::rule_numbers(usual.parameters));
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
  constexpr std::array kSpreads = {"group", "batch"};
  constexpr std::array kSums = {"sum_then_normalize", "normalize_then_sum"};
  constexpr std::array kLevels = {"token", "sequence"};
  constexpr std::array kChoices = {"none", "clip_cov", "kl_cov"};
  constexpr std::array kFailures = {"drop-sample", "drop-group", "stop"};
  OrderedJson settings = OrderedJson::object();
  add_unless(settings, "--advantage-estimator", std::string(rl::estimator_name(o.advantage.estimator)),
             std::string("grpo"));
  add_unless(settings, "--scale-rewards", name_of(o.advantage.group.spread, kSpreads),
             name_of(usual.advantage.group.spread, kSpreads));
  add_unless(settings, "--multi-objective-aggregation", name_of(o.reward.sum, kSums), name_of(usual.reward.sum, kSums));
  add_unless(settings, "--advantage-eps", o.advantage.group.eps, usual.advantage.group.eps);
  add_unless(settings, "--reward-std", o.advantage.group.population_std, usual.advantage.group.population_std);
  add_unless(settings, "--gamma", o.advantage.gamma, usual.advantage.gamma);
  add_unless(settings, "--lambd", o.advantage.lambda, usual.advantage.lambda);
  add_unless(settings, "--normalize-advantages", o.advantage.whiten, usual.advantage.whiten);
  add_unless(settings, "--policy-loss", objective_name(o.loss.objective), objective_name(usual.loss.objective));
  add_unless(settings, "ratio of --policy-loss", name_of(o.loss.ratio_level, kLevels),
             name_of(usual.loss.ratio_level, kLevels));
  add_unless(settings, "rows of --policy-loss", name_of(o.row_choice.kind, kChoices),
             name_of(usual.row_choice.kind, kChoices));
  add_unless(settings, "--loss-agg-mode", reduction_name(o.reduction.kind), reduction_name(usual.reduction.kind));
  add_unless(settings, "--loss-scale-factor", o.reduction.length, usual.reduction.length);
  add_unless(settings, "--top-entropy-quantile", o.row_choice.top_entropy_quantile, 1.0);
  add_unless(settings, "--dynamic-sampling-filter-path", o.need_spread, usual.need_spread);
  const auto threshold = [&](const char* name, const std::optional<double>& value) {
    if (value) settings[name] = *value;
  };
  threshold("--easy-threshold", o.difficulty.easy);
  threshold("--hard-threshold", o.difficulty.hard);
  add_unless(settings, "--easy-fraction", o.difficulty.easy_fraction, 0.0);
  add_unless(settings, "--hard-fraction", o.difficulty.hard_fraction, 0.0);
  add_unless(settings, "--over-sampling-batch-size", o.over_sampling, usual.over_sampling);
  add_unless(settings, "--mask-truncated-completions", o.mask_truncated, usual.mask_truncated);
  add_unless(settings, "--ref-update-interval", o.ref_update_interval, usual.ref_update_interval);
  add_unless(settings, "shape of --policy-loss", o.loss.shape(), usual.loss.shape());
  add_unless(settings, "shares of --policy-loss", row_shares(o.row_choice), row_shares(usual.row_choice));
  add_unless(settings, "rules of --use-tis", correction_texts(o.correction), correction_texts(usual.correction));
  add_unless(settings, "target of --kl-coef", std::vector<double>{o.kl_control.target, o.kl_control.horizon},
             std::vector<double>{usual.kl_control.target, usual.kl_control.horizon});
  add_unless(settings, "control of --entropy-coef", entropy_numbers(o.entropy_control),
             entropy_numbers(usual.entropy_control));
  add_reward(settings, o.reward);
  add_unless(settings, "--on-reward-failure", name_of(o.on_reward_failure, kFailures),
             name_of(usual.on_reward_failure, kFailures));
  if (o.engine.kind) settings["--rollout-engine"] = rollout::engine_name(*o.engine.kind);
  add_unless(settings, "--ref-load", o.reference, usual.reference);
  add_unless(settings, "--use-opd", o.distill, usual.distill);
  add_unless(settings, "--opd-teacher-load", o.teacher, usual.teacher);
  if (o.distill) add_distillation(settings, o);
  for (const SecondTrainerKind* kind : second_trainers(o)) kind->add_settings(settings, o);
  return settings;
}

rl::Algorithm algorithm_of(const RlOptions& options) {
  rl::Algorithm algorithm{.shaping = {.kl_coef = options.kl_reward_coef, .kl_type = options.loss.kl_type},
                          .advantage = options.advantage,
                          .distillation = options.distill ? options.distillation : rl::Distillation(),
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
