// lockstep sft, and dpo: supervised and preference training under the same names; `train --loss-type sft_loss` is sft.
#include "cli/adapter_flags.h"
#include "cli/checkpoint_flags.h"
#include "cli/claims.h"
#include "cli/eval_config.h"
#include "cli/layout_flags.h"
#include "cli/optimizer_flags.h"
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "cli/train_flags.h"
#include "cli/unread_flags.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr const char* kSftExample =
    "  lockstep sft --hf-checkpoint DIR --prompt-data rows.jsonl --lora-rank 16 --target-modules all-linear \\\n"
    "    --lr 1e-4 --num-epoch 2 --eval-prompt-data held_out test.jsonl --eval-interval 50 --save-best --save run\n"
    "Rows: {\"messages\": [{\"role\", \"content\"}, ...]}, {\"prompt\", \"completion\"} (strings or messages),\n"
    "{\"text\"}, or {\"tokens\", \"loss_mask\"}; docs/sft.md";
constexpr const char* kDpoExample =
    "  lockstep dpo --hf-checkpoint DIR --prompt-data pairs.jsonl --lora-rank 16 --target-modules all-linear --lr 1e-5 "
    "--save run\n"
    "Rows: {\"prompt\", \"chosen\", \"rejected\"} (strings or messages), or chosen and rejected alone; with\n"
    "--loss-type kto {\"prompt\", \"completion\", \"label\": true or false}; docs/sft.md";

struct SftForm {
  explicit SftForm(train::Loss loss) {
    options.training.global_batch_size = 8;
    options.loss = loss;
  }
  recipes::SftOptions options;
  std::optional<float> beta, gamma, desirable, undesirable;
  std::optional<int64_t> num_rollout;
  std::string ref_load;
  ReportForm reports;
  bool dry_run = false;
};

std::vector<Flag> row_flags(recipes::RowOptions& rows) {
  using recipes::TruncationMode;
  const auto set_truncation = [&rows](const std::string& name) {
    rows.truncation = name == "keep_end" ? TruncationMode::keep_end : TruncationMode::keep_start;
  };
  std::vector<Flag> flags = chat_flags(rows.chat);
  std::erase_if(flags, [](const Flag& flag) { return flag.name == "--apply-chat-template"; });  // messages always are
  flags.insert(flags.end(), {{"--input-key", "KEY", text(rows.messages_key), "key of a row's list of messages"},
                             loss_mask_flag(rows.loss_mask),
                             {"--max-seq-length", "N", number(rows.max_length, 2, 100'000'000),
                              "cut longer rows and count them (default: a longer row is an error)"},
                             {"--truncation-mode", "MODE", choice("keep_start|keep_end", "keep_start", set_truncation),
                              "which end of a row that is cut remains: keep_start | keep_end"},
                             max_bad_rows_flag(rows.max_bad_rows)});
  return flags;
}

FlagSet sft_flags(SftForm& form) {
  recipes::SftOptions& o = form.options;
  FlagSet flags;
  std::vector<Flag> required = {hf_checkpoint_flag(o.base),
                                {"--prompt-data", "FILE", text(o.prompt_data),
                                 "one sample per row: JSON Lines, JSON or Parquet (FILE@[0:100] for a part)"}};
  for (Flag& flag : required_lora_flags(o.adapter)) required.push_back(std::move(flag));
  flags.add("Required", std::move(required));
  const auto set_loss = [&o](const std::string& name) {
    if (name == "sft_loss") {
      o.loss = train::SftLoss{};
      return;
    }
    if (name == "kto") {
      o.loss = train::KtoLoss{};
      return;
    }
    train::DpoLoss dpo;
    for (const auto kind : {train::PreferenceKind::ipo, train::PreferenceKind::simpo, train::PreferenceKind::orpo})
      if (name == train::preference_name(kind)) dpo.kind = kind;
    o.loss = dpo;
  };
  const char* loss = std::holds_alternative<train::DpoLoss>(o.loss) ? "dpo_loss" : "sft_loss";
  flags.add(
      "Loss",
      {{"--loss-type", "NAME",
        choice("sft_loss|dpo_loss|sigmoid|ipo|simpo|orpo|kto", loss, set_loss, "policy_loss|custom_loss"),
        "sft_loss: cross-entropy of the targets | dpo_loss, sigmoid, ipo, simpo, orpo: of preferences | kto: of rows "
        "that "
        "are desirable or not"},
       {"--dpo-beta", "B", number(form.beta, kAboveZero, 1000),
        "of preferences: weight of the log-ratios to the reference, the base, or of log-probs (0.1)"},
       {"--simpo-gamma", "G", number(form.gamma, 0, 1000), "simpo: margin that the chosen one must win by (0.5)"},
       {"--desirable-weight", "W", number(form.desirable, 0, 1e6), "kto: of the loss of rows whose label is true (1)"},
       {"--undesirable-weight", "W", number(form.undesirable, 0, 1e6), "kto: of the others (1)"},
       {"--calculate-per-token-loss", "", toggle(o.training.per_token_loss),
        "mean over all tokens of a step, as TRL (default: mean of sample means, as slime)"}});
  flags.add("Loss", {ref_load_flag(form.ref_load)});
  flags.add("Data", row_flags(o.rows));
  flags.add("Data",
            {{"--num-epoch", "N", number(o.num_epoch, 1, kMany), "passes over the rows"},
             {"--num-rollout", "N", number(form.num_rollout, 1, kMany),
              "rollouts, instead of --num-epoch: a rollout is one optimizer step unless --rollout-batch-size is given"},
             {"--rollout-batch-size", "N", number(o.rollout_batch_size, 1, kMany),
              "rows per rollout; --num-rollout and intervals then count rollouts, and a batch may span the end "
              "of an epoch"},
             {"--train-iters", "N", number(o.num_steps, 1, kMany), "optimizer steps, instead of --num-epoch"},
             {"--global-batch-size", "N", number(o.training.global_batch_size, 1, kMany),
              "rows (or pairs) per optimizer step (with --rollout-batch-size: all of a rollout)"},
             {"--rollout-shuffle", "", toggle(o.shuffle), "shuffle the rows anew in each epoch"},
             {"--rollout-seed", "N", number(o.shuffle_seed, 0, 9e15), "seed of --rollout-shuffle"}});
  flags.add(
      "Evaluation",
      {{"--eval-prompt-data", "NAME PATH...", eval_sets(o.eval_sets), "held-out rows (or one PATH)"},
       {"--eval-interval", "N", number(o.eval_interval, 1, kMany),
        "steps between evaluations; also evaluates before the first step and after the last"},
       {"--skip-eval-before-train", "", toggle(o.eval_before_train, false), "do not evaluate before the first step"},
       {"--save-best", "", toggle(o.save_best), "keep the checkpoint of the lowest loss on the first set"},
       {"--save-best-set", "NAME", text(o.save_best_set), "on this set instead; also for the next"},
       {"--early-stopping-patience", "N", number(o.patience, 1, kMany),
        "stop after N evaluations without a lower loss on the first set"},
       {"--early-stopping-threshold", "X", number(o.threshold, 0, 1e6), "by how much the loss has to be lower"}});
  flags.add("LoRA", lora_flags(o.adapter));
  flags.add("Optimizer", optimizer_flags(o.optimizer));
  flags.add("Checkpoint", checkpoint_flags(o.save));
  flags.add("Reports", report_flags(form.reports, o.save, false));
  flags.add("Machine", machine_flags(o.base));
  flags.add("Machine", training_machine_flags(o.training, form.dry_run));
  flags.add("Ranks (docs/distributed.md)", layout_flags(o.training));
  return flags;
}

// Whatever a preference loss compares is a whole completion behind its prompt.
void check_completions(const SftForm& form, const Classified& given) {
  if (form.options.training.per_token_loss)
    throw ConfigError({.what = "a preference loss is a mean over pairs or rows",
                       .where = "--calculate-per-token-loss",
                       .attempt = "drop it: a completion's log-probabilities are sums over its tokens"});
  const auto mask = form.options.rows.loss_mask;
  if (mask != recipes::LossMaskType::automatic && mask != recipes::LossMaskType::completion)
    throw ConfigError({.what = "preference losses compare completions",
                       .where = "--loss-mask-type",
                       .got = given.given("--loss-mask-type")->values[0],
                       .wanted = "auto or completion"});
  if (form.options.rows.truncation == recipes::TruncationMode::keep_end)
    throw ConfigError(
        {.what = "preference losses compare completions behind their prompts, so rows are cut at their ends",
         .where = "--truncation-mode",
         .got = "keep_end",
         .wanted = "keep_start"});
}

void check_loss(SftForm& form, const Classified& given) {
  auto* dpo = std::get_if<train::DpoLoss>(&form.options.loss);
  auto* kto = std::get_if<train::KtoLoss>(&form.options.loss);
  if (dpo == nullptr && kto == nullptr && form.beta)
    throw ConfigError({.what = "--dpo-beta needs --loss-type dpo_loss", .where = "--dpo-beta"});
  if (form.gamma && (dpo == nullptr || dpo->kind != train::PreferenceKind::simpo))
    throw ConfigError({.what = "--simpo-gamma needs --loss-type simpo", .where = "--simpo-gamma"});
  for (const auto& [weight, flag] :
       {std::pair{form.desirable, "--desirable-weight"}, std::pair{form.undesirable, "--undesirable-weight"}})
    if (weight && kto == nullptr)
      throw ConfigError({.what = std::string(flag) + " needs --loss-type kto", .where = flag});
  if (dpo != nullptr) {
    dpo->beta = form.beta.value_or(dpo->beta);
    dpo->gamma = form.gamma.value_or(dpo->gamma);
  } else if (kto != nullptr) {
    *kto = {.beta = form.beta.value_or(kto->beta),
            .desirable_weight = form.desirable.value_or(kto->desirable_weight),
            .undesirable_weight = form.undesirable.value_or(kto->undesirable_weight)};
    if (form.options.training.global_batch_size < 2)
      throw ConfigError({.what = "KTO estimates its KL from prompts and completions of other rows of a step",
                         .where = "--global-batch-size",
                         .got = "1",
                         .wanted = "at least 2"});
  } else {
    return;
  }
  check_completions(form, given);
}

void check_watching(const recipes::SftOptions& o) {
  const auto needs = [](bool wanted, bool there, const char* flag, const char* other) {
    if (wanted && !there)
      throw ConfigError({.what = std::string(flag) + " needs " + other, .where = flag, .attempt = other});
  };
  needs(o.save_best, o.eval_interval > 0, "--save-best", "--eval-interval");
  needs(o.save_best, !o.save.save.empty(), "--save-best", "--save");
  check_best_set(o.eval_sets, o.save_best_set, o.save_best || o.patience);
  needs(o.patience.has_value(), o.eval_interval > 0, "--early-stopping-patience", "--eval-interval");
  needs(o.threshold > 0, o.patience || o.save_best, "--early-stopping-threshold", "--early-stopping-patience");
}

// Rollouts in optimizer steps, as slime counts them.
void resolve_rollouts(SftForm& form, const Classified& given) {
  recipes::SftOptions& o = form.options;
  int64_t steps = 1;  // of a rollout
  if (o.rollout_batch_size > 0) {
    int64_t& batch = o.training.global_batch_size;
    if (given.given("--global-batch-size") == nullptr) batch = o.rollout_batch_size;
    if (o.rollout_batch_size % batch != 0)
      throw ConfigError({.what = "a rollout does not divide into batches",
                         .where = "--global-batch-size",
                         .got = shown_number(batch),
                         .wanted = "a divisor of --rollout-batch-size " + shown_number(o.rollout_batch_size)});
    steps = o.rollout_batch_size / batch;
  }
  if (form.num_rollout && o.num_steps)
    throw ConfigError({.what = "--num-rollout and --train-iters exclude each other",
                       .where = "--train-iters",
                       .attempt = "keep one"});
  if (form.num_rollout) o.num_steps = *form.num_rollout * steps;
  o.eval_interval *= steps;
  o.save.save_interval *= steps;
  if (o.save.retain_interval) *o.save.retain_interval *= steps;
  if (o.save.ckpt_step) *o.save.ckpt_step *= steps;
}

TrainingCommand<recipes::SftOptions> parse(const Values& args, train::Loss loss) {
  SftForm form(loss);
  TrainForm train_form;
  const FlagSet flags = sft_flags(form), elsewhere = train_flags(train_form);
  Classified given = classify(args, flags, Scripts::sft, &elsewhere);
  bind(given, flags);
  require(given, {"--hf-checkpoint", "--prompt-data"});
  check_loss(form, given);
  resolve_rollouts(form, given);
  resolve_adapter(form.options.adapter, given);
  check_schedule(form.options.optimizer, given);
  check_save(form.options.save, given);
  check_evaluation(form.options.eval_sets, form.options.eval_interval, given.notes);
  check_watching(form.options);
  check_scripts(given);
  note_unread(form.options, given);
  note_exclusions(form.options.adapter.config, given.notes);
  resolve_reports(form.reports, form.options.save, given);
  form.options.save.arguments = resolved_arguments(flags, given);
  const auto* dpo = std::get_if<train::DpoLoss>(&form.options.loss);
  if (dpo != nullptr && dpo->kind == train::PreferenceKind::orpo)
    given.notes.push_back(
        "--loss-type orpo: the cross-entropy is the mean over a completion's tokens; TRL's is over prompt and "
        "completion "
        "of the whole batch");
  const bool kto = std::holds_alternative<train::KtoLoss>(form.options.loss);
  const bool preferences = kto || (dpo != nullptr && train::reads_reference(*dpo));
  if (preferences) form.options.reference = form.ref_load;
  std::vector<recipes::LaunchClaim> claims = deferred_claims(given.claims, given.notes);
  std::optional<server::DashboardOptions> dashboard = resolve_dashboard(form.reports, form.options.save, given);
  return {.options = std::move(form.options),
          .dashboard = std::move(dashboard),
          .dry_run = form.dry_run,
          .notes = std::move(given.notes),
          .shape = std::move(given.shape),
          .claims = std::move(claims),
          .ref_load = std::move(form.ref_load),
          .uses_reference = preferences};
}

}  // namespace

TrainingCommand<recipes::SftOptions> parse_sft(const Values& args) {
  return parse(args, train::SftLoss{});
}
TrainingCommand<recipes::SftOptions> parse_dpo(const Values& args) {
  return parse(args, train::DpoLoss{});
}

std::string sft_help() {
  SftForm form(train::SftLoss{});
  return sft_flags(form).help("sft", "Supervised training of a LoRA adapter.", training_closing(kSftExample));
}
std::string dpo_help() {
  SftForm form(train::DpoLoss{});
  return sft_flags(form).help(
      "dpo", "Preference training (DPO, KTO) of a LoRA adapter; the reference is the base, or --ref-load.",
      training_closing(kDpoExample));
}

bool asks_for_sft(const Values& args) {
  std::string loss;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--loss-type" && i + 1 < args.size()) loss = args[i + 1];
    if (args[i].starts_with("--loss-type=")) loss = args[i].substr(args[i].find('=') + 1);
  }
  for (const char* name : {"sft_loss", "dpo_loss", "sigmoid", "ipo", "simpo", "orpo", "kto"})
    if (loss == name) return true;
  return false;
}

}  // namespace lockstep::cli
