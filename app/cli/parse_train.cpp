// lockstep train: the flags of vime, miles and slime with their defaults, and the rules between them.
#include <fmt/format.h>

#include "cli/adapter_flags.h"
#include "cli/async_flags.h"
#include "cli/checkpoint_flags.h"
#include "cli/claims.h"
#include "cli/eval_config.h"
#include "cli/layout_flags.h"
#include "cli/optimizer_flags.h"
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "cli/reward_flags.h"
#include "cli/second_trainer_flags.h"
#include "cli/train_flags.h"
#include "cli/unread_flags.h"
#include "core/error.h"
#include "recipes/held_out_prompts.h"
#include "recipes/steps.h"

namespace lockstep::cli {

namespace {

constexpr const char* kExample =
    "  lockstep train --hf-checkpoint models/arith --prompt-data models/arith/train.jsonl --input-key prompt "
    "--label-key label \\\n"
    "    --rm-type number --num-rollout 30 --rollout-batch-size 16 --n-samples-per-prompt 8 --rollout-max-response-len "
    "16 \\\n"
    "    --lora-rank 8 --target-modules all-linear --lr 1e-3 --save run --save-interval 10";

std::vector<Flag> required_flags(TrainForm& form) {
  recipes::RlOptions& o = form.options;
  std::vector<Flag> flags = {
      hf_checkpoint_flag(o.base),
      {"--prompt-data", "FILE", text(o.prompt_data),
       "one prompt a row: JSON Lines, JSON or Parquet (FILE@[0:100] for a part)"},
      {"--label-key", "KEY", text(o.label_key), "key of the right answer"},
      reward_flag(o.reward, ""),
      {"--rollout-batch-size", "N", number(o.rollout_batch_size, 1, 1'000'000), "prompts per rollout"},
      {"--num-rollout", "N", number(o.num_rollout, 1, kMany), "rollouts of the run (or --num-epoch)"}};
  for (Flag& flag : required_lora_flags(o.adapter)) flags.push_back(std::move(flag));
  return flags;
}

std::vector<Flag> rollout_flags(recipes::RlOptions& o) {
  return {
      {"--n-samples-per-prompt", "N", number(o.n_samples, 1, 65536), "group size: samples of each prompt"},
      {"--rollout-max-response-len", "N", number(o.sampling.max_tokens, 1, 10'000'000), "most new tokens of a sample"},
      {"--rollout-max-prompt-len", "N", number(o.max_prompt_len, 1, 10'000'000),
       "longer prompts are dropped (context - 1)"},
      {"--rollout-temperature", "T", number(o.sampling.temperature, kAboveZero, 100),
       "log-probs are those of logits / T too"},
      {"--rollout-top-p", "P", number(o.sampling.top_p, kAboveZero, 1), "sample from the most likely tokens of mass P"},
      {"--rollout-top-k", "K", number(o.sampling.top_k, -1, kMany), "sample from the K most likely tokens (-1: all)"},
      {"--rollout-stop", "TEXT...", texts(o.sampling.stop), "a sample ends at one of these"},
      {"--rollout-stop-token-ids", "ID...", numbers(o.sampling.stop_token_ids, 0, 2147483647), "and at these tokens"},
      {"--rollout-seed", "N", number(o.sampling.seed, 0, 9e15), "of sampling and of the data order"}};
}

std::vector<Flag> check_flags(TrainForm& form) {
  recipes::RunChecks& checks = form.options.checks;
  const Binding equal_weights = {.arity = Arity::none, .set = [&checks](const std::string&, const Values&) {
                                   checks.equal_base = checks.equal_adapter = checks.equal_servers = true;
                                 }};
  return {{"--ci-test", "", toggle(form.ci_test), "check log-probs (next flag), and that the first rollout's KL is 0"},
          {"--ci-train-rollout-logprob-abs-diff-threshold", "X", number(checks.logprob_diff, 0, 1e6),
           "most that log-probs of trainer and sampler differ, on average (0.1 with --ci-test)"},
          {"--ci-disable-kl-checker", "", toggle(form.ci_kl, false), "--ci-test without the KL"},
          {"--true-on-policy-mode", "", toggle(checks.equal_logprobs), "no token's log-prob differs between them"},
          {"--check-weight-update-equal", "", equal_weights,
           "the base stays as it is, here and by the checksums of servers; as the next"},
          {"--check-lora-weight-equal", "", toggle(checks.equal_adapter),
           "what is published is the trainer's adapter, byte for byte"}};
}

std::vector<Flag> evaluation_flags(TrainForm& form) {
  recipes::RlOptions& o = form.options;
  return {
      {"--eval-prompt-data", "NAME PATH...", eval_sets(o.eval_sets), "held-out sets (or one PATH)"},
      {"--eval-interval", "N", number(o.eval_interval, 1, kMany),
       "rollouts between evaluations, also before the first"},
      {"--eval-config", "FILE", text(form.eval_config),
       "held-out sets, each with sampling and reward of its own: YAML or JSON as in slime and miles; instead of "
       "--eval-prompt-data"},
      {"--skip-eval-before-train", "", toggle(o.eval_before_train, false), "not before the first"},
      {"--save-best", "", toggle(o.save_best), "keep the checkpoint of the highest accuracy on the first set"},
      {"--save-best-set", "NAME", text(o.save_best_set), "on this set instead"},
      {"--n-samples-per-eval-prompt", "N", number(o.eval_samples, 1, 65536), "samples of each held-out prompt"},
      {"--eval-max-response-len", "N", number(form.eval_max_tokens, 1, 10'000'000), "as for rollouts unless given"},
      {"--eval-temperature", "T", number(form.eval_temperature, 0, 100), "the same; 0: greedy"},
      {"--eval-top-p", "P", number(form.eval_top_p, kAboveZero, 1), "the same"},
      {"--eval-top-k", "K", number(form.eval_top_k, -1, kMany), "the same; 1: greedy"},
      {"--eval-input-key", "KEY", text(o.eval_input_key), "as --input-key unless given"},
      {"--eval-min-new-tokens", "N", number(form.eval_min_tokens, 0, 10'000'000), "no end before so many tokens (0)"},
      {"--eval-max-context-len", "N", number(form.eval_max_context, 1, 10'000'000), "as for rollouts unless given"},
      {"--eval-max-prompt-len", "N", number(o.eval_max_prompt_len, 1, 10'000'000),
       "the same; longer ones are left out"},
      {"--eval-label-key", "KEY", text(o.eval_label_key), "as --label-key unless given"},
      {"--eval-tool-key", "KEY", text(o.eval_tool_key), "as --tool-key unless given"},
      {"--eval-reward-key", "KEY", text(o.eval_reward_key), "as --reward-key unless given"}};
}

void check_required(const recipes::RlOptions& o, const Classified& given) {
  std::vector<std::string_view> needed = {"--hf-checkpoint", "--prompt-data"};
  const rl::RewardRule* rule = o.reward.only_rule();
  const bool teacher_only = rule != nullptr && rule->type == rl::RewardType::zero;
  if (o.reward.python_path.empty()) {
    if (recipes::needs_labels(o.reward)) needed.push_back("--label-key");
    if (!teacher_only) needed.push_back("--rm-type");
  }
  needed.insert(needed.end(), {"--rollout-batch-size", "--num-rollout or --num-epoch"});
  require(given, needed);
}

// Rewards that are normalized one by one have no sum that another stage could change.
void check_objectives(const recipes::RlOptions& o) {
  if (o.reward.sum != rl::RewardSum::normalize_then_sum) return;
  if (o.kl_reward_coef != 0)
    throw ConfigError({.what = "--kl-coef charges the sum of rewards, which normalize_then_sum does not make",
                       .where = "--kl-coef",
                       .attempt = "--use-kl-loss --kl-loss-coef"});
  if (o.advantage.estimator != rl::Estimator::grpo)
    throw ConfigError({.what = "--multi-objective-aggregation normalize_then_sum needs --advantage-estimator grpo",
                       .where = "--advantage-estimator",
                       .got = rl::estimator_name(o.advantage.estimator)});
}

// A rollout's samples are cut into whole optimizer steps.
void resolve_batches(recipes::RlOptions& o) {
  const int64_t samples = o.rollout_batch_size * o.n_samples;
  const std::string made = fmt::format("{} samples (--rollout-batch-size {} x --n-samples-per-prompt {})", samples,
                                       o.rollout_batch_size, o.n_samples);
  int64_t& batch = o.training.global_batch_size;
  int64_t& steps = o.num_steps_per_rollout;
  if (batch > 0 && samples % batch != 0)
    throw ConfigError({.what = "a rollout does not divide into batches",
                       .where = "--global-batch-size",
                       .got = shown_number(batch),
                       .wanted = "a divisor of " + made});
  if (steps > 0 && samples % steps != 0)
    throw ConfigError({.what = "a rollout does not divide into steps",
                       .where = "--num-steps-per-rollout",
                       .got = shown_number(steps),
                       .wanted = "a divisor of " + made});
  if (batch > 0 && steps > 0 && batch * steps != samples)
    throw ConfigError({.what = "--global-batch-size and --num-steps-per-rollout disagree",
                       .where = "--global-batch-size",
                       .got = shown_number(batch),
                       .wanted = fmt::format("{}: {} in {} steps", samples / steps, made, steps),
                       .attempt = "keep one of them"});
  if (batch == 0) batch = samples / std::max<int64_t>(steps, 1);
  steps = samples / batch;
}

void resolve_evaluation(TrainForm& form, std::vector<std::string>& notes) {
  recipes::RlOptions& o = form.options;
  if (!form.eval_config.empty()) {
    if (!o.eval_sets.empty()) notes.push_back("--eval-config goes before --eval-prompt-data, as in slime");
    o.eval_sets = read_eval_config(form.eval_config);
  }
  check_evaluation(o.eval_sets, o.eval_interval, notes);
  check_best_set(o.eval_sets, o.save_best_set, o.save_best);
  o.eval_sampling = o.sampling;
  o.eval_sampling.min_tokens = form.eval_min_tokens.value_or(o.sampling.min_tokens);
  o.eval_sampling.max_context = form.eval_max_context.value_or(o.sampling.max_context);
  o.eval_sampling.max_tokens = form.eval_max_tokens.value_or(o.sampling.max_tokens);
  o.eval_sampling.temperature = form.eval_temperature.value_or(o.sampling.temperature);
  o.eval_sampling.top_p = form.eval_top_p.value_or(o.sampling.top_p);
  o.eval_sampling.top_k = form.eval_top_k.value_or(o.sampling.top_k);
  o.sampling.logprob_temperature = o.sampling.temperature;
  for (const recipes::EvalSet& set : o.eval_sets) try {
      recipes::eval_sampling(o, set);
    } catch (const ConfigError& error) {
      Fault fault = error.fault();
      fault.where = set.name + ": " + fault.where;
      throw ConfigError(std::move(fault));
    }
}

void check_best(const recipes::RlOptions& o) {
  const char* missing = o.eval_interval == 0 ? "--eval-interval" : o.save.save.empty() ? "--save" : nullptr;
  if (o.save_best && missing != nullptr)
    throw ConfigError({.what = fmt::format("--save-best needs {}", missing), .where = "--save-best"});
}

void resolve_checks(TrainForm& form, std::vector<std::string>& notes) {
  constexpr double kDefault = 0.1;  // slime's
  if (!form.ci_test) return;
  recipes::RunChecks& checks = form.options.checks;
  checks.logprob_diff = checks.logprob_diff.value_or(kDefault);
  checks.equal_reference = form.ci_kl;
  notes.push_back(
      "--ci-test: checks log-probs and the first rollout's KL; slime's bounds on mean log-prob and entropy are not "
      "checked");
}

}  // namespace

FlagSet train_flags(TrainForm& form) {
  recipes::RlOptions& o = form.options;
  FlagSet flags;
  flags.add("Required", required_flags(form));
  flags.add("Data",
            {{"--input-key", "KEY", text(o.input_key), "key of the prompt: a string, or a list of messages"},
             {"--rollout-shuffle", "", toggle(o.shuffle), "prompts in a new order each epoch"},
             {"--metadata-key", "KEY", text(o.metadata_key),
              "key of an object whose rm_type, if it has one, is the row's reward"},
             max_bad_rows_flag(o.max_bad_rows),
             {"--num-epoch", "N", number(o.num_epoch, 1, kMany), "passes over the prompts, if no --num-rollout"}});
  flags.add("Data", chat_flags(o.chat));
  flags.add("Rollout", rollout_flags(o));
  flags.add("When samples are drawn", async_flags(o));
  flags.add("Rollout engine", rollout_engine_flags(form.engine, o));
  flags.add("Algorithm", algorithm_flags(form.algorithm, o));
  flags.add("Reward", reward_flags(o.reward));
  flags.add("Reward", training_reward_flags(o));
  flags.add("Algorithm", {ref_load_flag(form.ref_load)});
  add_second_trainer_flags(flags, o);
  flags.add("Shape of losses", loss_shape_flags(form.algorithm, o));
  flags.add("Adaptive coefficients, reference", adaptive_flags(form.gates, o));
  flags.add("Which samples are trained on", gate_flags(form.gates, o));
  flags.add("On-policy distillation", distillation_flags(form.distillation, o));
  flags.add("Off-policy samples", correction_flags(form.correction, o));
  flags.add("LoRA", lora_flags(o.adapter));
  flags.add("Optimizer", optimizer_flags(o.optimizer));
  flags.add("Checkpoint", checkpoint_flags(o.save));
  flags.add("Reports", report_flags(form.reports, o.save, true));
  flags.add("Evaluation", evaluation_flags(form));
  flags.add("Checks (a run that fails one saves and ends with exit code 8)", check_flags(form));
  flags.add("Debugging", debug_flags(form.debug, o.debug));
  flags.add("Machine", machine_flags(o.base));
  flags.add("Machine", training_machine_flags(o.training, form.dry_run));
  flags.add("Ranks (docs/distributed.md)", layout_flags(o.training));
  flags.add("Ranks (docs/distributed.md)", engine_layout_flags(o.training));
  flags.add("Machine",
            {kv_cache_flag(o.kv_bytes),
             {"--max-num-seqs", "N", number(o.max_sequences, 1, 65536),
              "most sequences generated at once (256; where --max-staleness samples several rollouts together, 512)"}});
  return flags;
}

TrainingCommand<recipes::RlOptions> parse_train(const Values& args) {
  TrainForm form;
  const FlagSet flags = train_flags(form);
  Classified given = classify(args, flags, Scripts::train);
  bind(given, flags);
  take_teacher_functions(form.distillation, form.options, given);
  check_required(form.options, given);
  resolve_adapter(form.options.adapter, given);
  check_schedule(form.options.optimizer, given);
  check_save(form.options.save, given);
  check_best(form.options);
  check_reward(form.options.reward, form.options.sampling.max_tokens, given);
  check_scripts(given);
  note_exclusions(form.options.adapter.config, given.notes);
  resolve_rollout_engine(form.engine, form.options, given);
  resolve_algorithm(form.algorithm, form.options, given, given.notes);
  resolve_distillation(form.distillation, form.options, given.notes);
  resolve_second_trainers(form.options, given, given.notes);
  check_objectives(form.options);
  resolve_correction(form.correction, form.options, given.notes);
  resolve_gates(form.gates, form.options, given.notes);
  resolve_async(form.options, given);
  resolve_batches(form.options);
  if (form.options.num_rollout)
    recipes::check_warmup(form.options.optimizer, *form.options.num_rollout * form.options.num_steps_per_rollout);
  resolve_evaluation(form, given.notes);
  resolve_checks(form, given.notes);
  resolve_debug(form.debug, form.options, given.notes);
  judge_claims(given.claims, form.options, given.notes);
  note_unread(form.options, given);
  form.options.reference = form.ref_load;
  const bool uses_reference = form.options.use_kl_loss || form.options.kl_reward_coef != 0;
  resolve_reports(form.reports, form.options.save, given);
  form.options.save.arguments = resolved_arguments(flags, given);
  std::vector<recipes::LaunchClaim> claims = deferred_claims(given.claims, given.notes);
  std::optional<server::DashboardOptions> dashboard = resolve_dashboard(form.reports, form.options.save, given);
  return {.options = std::move(form.options),
          .dashboard = std::move(dashboard),
          .dry_run = form.dry_run,
          .notes = std::move(given.notes),
          .shape = std::move(given.shape),
          .claims = std::move(claims),
          .ref_load = std::move(form.ref_load),
          .uses_reference = uses_reference};
}

std::string train_help() {
  TrainForm form;
  return train_flags(form).help("train",
                                "Reinforcement learning (GRPO) of a LoRA adapter; trainer and engine share one base.",
                                training_closing(kExample));
}

}  // namespace lockstep::cli
