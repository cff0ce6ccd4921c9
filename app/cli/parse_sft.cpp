// lockstep sft: supervised training under the same names.
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "cli/train_flags.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr const char* kExample =
    "  lockstep sft --hf-checkpoint DIR --prompt-data rows.jsonl --lora-rank 16 --target-modules all-linear "
    "--num-epoch 2 --save run\n"
    "Rows: {\"prompt\": \"...\", \"completion\": \"...\"} or {\"tokens\": [...], \"loss_mask\": [...]}";

struct SftForm {
  SftForm() { options.training.global_batch_size = 8; }
  recipes::SftOptions options;
  bool dry_run = false;
};

FlagSet sft_flags(SftForm& form) {
  recipes::SftOptions& o = form.options;
  FlagSet flags;
  std::vector<Flag> required = {
      hf_checkpoint_flag(o.base),
      {"--prompt-data", "FILE", text(o.prompt_data), "one sample a row: JSON Lines, JSON or Parquet"}};
  for (Flag& flag : required_lora_flags(o.adapter)) required.push_back(std::move(flag));
  flags.add("Required", std::move(required));
  flags.add("Data",
            {{"--num-epoch", "N", number(o.num_epoch, 1, kMany), "passes over the rows"},
             {"--global-batch-size", "N", number(o.training.global_batch_size, 1, kMany), "rows per optimizer step"},
             {"--rollout-shuffle", "", toggle(o.shuffle), "rows in a new order each epoch"},
             {"--rollout-seed", "N", number(o.shuffle_seed, 0, 9e15), "of that order"},
             max_bad_rows_flag(o.max_bad_rows),
             {"--calculate-per-token-loss", "", toggle(o.training.per_token_loss),
              "mean over all tokens (of sample means)"}});
  flags.add("LoRA", lora_flags(o.adapter));
  flags.add("Optimizer", optimizer_flags(o.optimizer));
  flags.add("Checkpoint", checkpoint_flags(o.save));
  flags.add("Machine", machine_flags(o.base));
  flags.add("Machine", training_machine_flags(o.training, form.dry_run));
  return flags;
}

}  // namespace

TrainingCommand<recipes::SftOptions> parse_sft(const Values& args) {
  SftForm form;
  TrainForm train_form;
  const FlagSet flags = sft_flags(form), elsewhere = train_flags(train_form);
  Classified given = classify(args, flags, Scripts::sft, &elsewhere);
  bind(given, flags);
  require(given, {"--hf-checkpoint", "--prompt-data"});
  check_adapter(form.options.adapter, given);
  check_schedule(form.options.optimizer, given);
  check_save(form.options.save, given);
  check_scripts(given, given.notes);
  note_exclusions(form.options.adapter.config, given.notes);
  return {.options = std::move(form.options),
          .dry_run = form.dry_run,
          .notes = std::move(given.notes),
          .shape = std::move(given.shape)};
}

std::string sft_help() {
  SftForm form;
  return sft_flags(form).help("sft", "Supervised training of a LoRA adapter.", training_closing(kExample));
}

}  // namespace lockstep::cli
