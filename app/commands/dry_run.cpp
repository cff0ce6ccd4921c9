// --dry-run: prints what a run would do and how much memory it would take. Reads no weights.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>

#include "commands/commands.h"
#include "commands/describe_layout.h"
#include "commands/describe_staleness.h"
#include "core/hidden_secrets.h"
#include "data/dataset.h"
#include "recipes/adapter.h"
#include "recipes/held_out_prompts.h"
#include "recipes/memory_plan.h"
#include "recipes/prompts.h"
#include "recipes/resume.h"
#include "recipes/rl.h"
#include "recipes/rl_settings.h"
#include "recipes/run_settings.h"
#include "recipes/second_trainers.h"
#include "recipes/sft_settings.h"
#include "recipes/steps.h"
#include "recipes/supervised_loss.h"
#include "recipes/training_rows.h"

namespace lockstep::commands {

namespace {

std::string count_text(std::optional<int64_t> count) {
  return count ? std::to_string(*count) : "unknown";
}

std::string bytes_text(int64_t count) {
  const auto bytes = static_cast<double>(count);
  return bytes < 1e9 ? fmt::format("{:8.1f} MB", bytes * 1e-6) : fmt::format("{:8.2f} GB", bytes * 1e-9);
}

// What fs::require_writable_directory would find, without making anything.
void check_writable(const std::string& directory) {
  const auto fail = [&](const std::string& why) {
    throw ResourceError({.what = "cannot write",
                         .where = directory,
                         .got = why,
                         .attempt = "a directory you may write to, with room left on its disk"});
  };
  fs::Path place = std::filesystem::absolute(directory);
  std::error_code error;
  std::filesystem::file_status status = std::filesystem::status(place, error);
  while (status.type() == std::filesystem::file_type::not_found && place.has_relative_path()) {
    place = place.parent_path();
    status = std::filesystem::status(place, error);
  }
  if (error) fail(error.message());  // it may be there, but nobody can look
  if (!std::filesystem::is_directory(status)) fail(place.string() + " is not a directory");
  if (::access(place.c_str(), W_OK | X_OK) != 0) fail(place.string() + " is not writable");
}

struct DryRun {
  const load::Base& base;
  const recipes::AdapterOptions& adapter;
  const recipes::OptimizerOptions& optimizer;
  const recipes::TrainingOptions& training;
  const recipes::SaveOptions& save;
  const Device device;
  std::ostream& out;
  const recipes::Layout layout_of_ranks = recipes::layout_of(training);

  std::shared_ptr<const lora::AdapterLayout> layout() const { return recipes::starting_layout(adapter, base); }

  void model_and_memory(const recipes::BesideTrainer& beside = {},
                        const std::optional<RolloutShape>& rollout = std::nullopt) const {
    const auto adapter_layout = layout();
    const int64_t base_parameters = model::num_parameters(base.config);
    const int64_t total = base_parameters + adapter_layout->num_parameters;
    out << fmt::format("model       {} ({}, {} layers, width {}, vocabulary {})\n", base.name, base.config.family,
                       base.config.layers, base.config.width, base.config.vocab_size);
    out << fmt::format("adapter     {} rank {} alpha {:g} on {}{}\n", lora::lora_type_name(adapter_layout->config.type),
                       adapter_layout->config.rank, adapter_layout->config.alpha,
                       fmt::join(adapter_layout->target_leaves, ", "), recipes::kind_text(adapter_layout->config));
    out << fmt::format("parameters  {} total, {} trainable ({:.3f} %)\n", total, adapter_layout->num_parameters,
                       100.0 * static_cast<double>(adapter_layout->num_parameters) / static_cast<double>(total));
    for (const auto& [name, other] : beside.trained)
      out << fmt::format("{:<12}{} rank {}{}, {} trainable parameters on the same base\n", name,
                         lora::lora_type_name(other->config.type), other->config.rank,
                         other->value_head ? ", with a value head" : "", other->num_parameters);
    describe_layout(layout_of_ranks, training, device, *adapter_layout, rollout, out);
    memory(*adapter_layout, beside);
  }

  void memory(const lora::AdapterLayout& adapter_layout, recipes::BesideTrainer beside) const {
    beside.saves = !save.save.empty();
    const recipes::MemoryPlan memory = recipes::plan_memory(base, adapter_layout, training, beside, device);
    const char* label = layout_of_ranks.ranks() > 1 ? "memory/rank " : "memory      ";
    const auto line = [&](const char* what, int64_t bytes, const std::string& remark = "") {
      out << fmt::format("{}{:<20}{}{}\n", label, what, bytes_text(bytes), remark);
      label = "            ";
    };
    if (memory.is_bounded()) {
      const DeviceInfo gpu = cuda_info();
      line("of the GPU", gpu.total_bytes, fmt::format("  ({}), free", gpu.name) + bytes_text(gpu.free_bytes));
    }
    line("base weights", memory.base);
    line(beside.trained.empty() ? "adapter versions" : "adapters' versions", memory.adapter,
         fmt::format("  ({}{})", beside.versions, beside.trained.empty() ? "" : " of the actor"));
    line("optimizer moments", memory.moments);
    line("gradient lanes", memory.lanes, "  (at most)");
    if (memory.snapshots > 0) line("snapshots to save", memory.snapshots);
    line("activations", memory.activations,
         fmt::format("  (micro-batch of {} tokens, recompute {})", memory.max_tokens,
                     model::recompute_name(memory.recompute)));
    line("logits, at most", memory.logits);
    if (memory.prefill > 0) line("prefill", memory.prefill);
    if (memory.reserve > 0) line("reserve", memory.reserve);
    if (memory.kv > 0) line("KV pool, at most", memory.kv);
    line("sum", memory.without_kv() + memory.kv);
    recipes::require_fit(memory);
  }

  // Where a run would start.
  struct Start {
    std::shared_ptr<const checkpoint::LoadedCheckpoint> checkpoint;  // null: there is none, or another system's
    std::optional<double> dropout;  // of the checkpoint, where that is the adapter to start from
  };

  // With the errors of a real run, also of what it would keep.
  Start start() const {
    if (!save.save.empty()) check_writable(save.save);
    if (save.load.empty()) return {};
    if (const auto foreign = recipes::foreign_checkpoint(save)) {
      out << fmt::format("load        {}, the adapter of another system; everything else starts anew\n",
                         foreign->string());
      return {.checkpoint = nullptr, .dropout = checkpoint::PeftDirectory(*foreign).config().dropout};
    }
    const auto loaded = recipes::checkpoint_to_load(save, nullptr, out);
    out << fmt::format(
        "load        {}{}\n", save.load,
        loaded ? fmt::format(", iteration {}", loaded->state().iteration) : ": no checkpoint yet, a fresh start");
    Start start{.checkpoint = loaded, .dropout = std::nullopt};
    if (loaded && save.finetune)
      start.dropout = loaded->policy(lora::kActor).directory.config().dropout;
    else if (loaded && !adapter.adapter_path.empty())
      start.dropout = JsonObject(loaded->state().counters, save.load).object("settings").number("--lora-dropout", 0);
    return start;
  }

  // `steps` is unknown where the data is not on this machine.
  void schedule(std::optional<int64_t> steps) const {
    if (steps) recipes::check_warmup(optimizer, *steps);
    out << fmt::format("optimizer   AdamW lr {:g} ({}), betas {:g} {:g}, eps {:g}, weight decay {:g}, clip {:g}\n",
                       optimizer.schedule.lr, train::decay_style_name(optimizer.schedule.style), optimizer.beta1,
                       optimizer.beta2, optimizer.eps, optimizer.weight_decay, optimizer.clip_grad);
    if (optimizer.loraplus_lr_ratio != 1)
      out << fmt::format("            LoRA+: B at {:g} times this rate\n", optimizer.loraplus_lr_ratio);
    out << fmt::format("            {} optimizer steps\n", count_text(steps));
    out << fmt::format("save        {}\n",
                       save.save.empty() ? "nothing (no --save)"
                                         : save.save + (save.save_interval > 0
                                                            ? fmt::format(", every {} iterations and after the last",
                                                                          save.save_interval)
                                                            : ", after the last iteration"));
  }

  // Those of flags: adapter and data have lines of their own. `steps`: of the optimizer, where they are known.
  // ConfigError where the checkpoint was made with others.
  void settings(const OrderedJson& method, std::optional<int64_t> steps, const Start& start) const {
    OrderedJson all = recipes::common_settings(adapter, optimizer, training);
    if (!adapter.asked_dropout) all["--lora-dropout"] = start.dropout ? *start.dropout : layout()->config.dropout;
    all.update(method);
    if (steps) all.update(recipes::schedule_settings(recipes::schedule_of(optimizer, *steps)));
    if (start.checkpoint) {
      OrderedJson known;  // not what a run reads out of data that is not on this machine
      for (const auto& [name, value] : all.items())
        if (name.starts_with("--")) known[name] = value;
      recipes::check_resumable(*start.checkpoint, save, adapter, known, base);
    }
    out << "settings that decide results, as a checkpoint keeps them\n";
    for (const auto& [name, value] : all.items())
      if (name.starts_with("--") && !value.is_null())
        out << fmt::format("  {} {}\n", name, recipes::setting_text(value));
  }

  void notes(const std::vector<std::string>& lines) const {
    if (!lines.empty()) out << "compatibility flags\n";
    for (const std::string& line : lines) out << "  " << line << "\n";
  }
};

// Rows of a data file if it is there: a dry run also works on a machine without the data.
std::string rows_text(const std::string& path, int64_t max_bad_rows, std::optional<int64_t>& rows) {
  const std::string file = path.substr(0, path.rfind("@["));
  if (!fs::exists(file)) return fmt::format("{} (not on this machine)", path);
  data::Dataset data = data::Dataset::open(path, {.max_bad_rows = max_bad_rows});
  rows = 0;
  while (data.next()) ++*rows;
  const size_t bad = data.bad_rows().size();
  return fmt::format("{} rows from {}{}", *rows, path, bad > 0 ? fmt::format(", {} bad rows left out", bad) : "");
}

// Whether a run's rows can be tokenized here.
bool is_readable(const std::string& path, const load::Base& base) {
  return fs::exists(path.substr(0, path.rfind("@["))) && fs::exists(base.path / "tokenizer.json");
}

std::string prompts_text(const recipes::PromptSet& prompts, const std::string& path) {
  const auto left_out = [](size_t count, const char* which) {
    return count > 0 ? fmt::format(", {} {}", count, which) : "";
  };
  return fmt::format("{} prompts from {}{}{}", prompts.prompts.size(), path,
                     left_out(static_cast<size_t>(prompts.dropped), "too long, dropped"),
                     left_out(prompts.bad_rows.size(), "bad rows left out"));
}

}  // namespace

void dry_run_sft(const recipes::SftOptions& options, const std::vector<std::string>& notes,
                 const recipes::Control& control) {
  const load::Base base = recipes::read_base(options.base);
  const DryRun dry_run{base,
                       options.adapter,
                       options.optimizer,
                       options.training,
                       options.save,
                       recipes::planned_device(recipes::layout_of(options.training), options.base.device),
                       *control.out};
  const DryRun::Start start = dry_run.start();
  dry_run.model_and_memory();
  // The number of rows, where they are on this machine.
  const auto describe_rows = [&](const std::string& label, const std::string& path) {
    std::optional<int64_t> rows;
    if (!is_readable(path, base)) {
      *control.out << fmt::format("{} {}\n", label, rows_text(path, options.rows.max_bad_rows, rows));
      return rows;
    }
    const recipes::TrainingRows data(path, base, options.rows, recipes::row_kind(options.loss), control);
    data.describe(label, *control.out);
    return std::optional(data.size());
  };
  const std::optional<int64_t> rows = describe_rows("data       ", options.prompt_data);
  for (const recipes::EvalSet& set : options.eval_sets) {
    *control.out << fmt::format("evaluation  {}, every {} steps\n", set.name, options.eval_interval);
    describe_rows("           ", set.path);
  }
  *control.out << fmt::format("batch       {} {} a step, {}\n", options.training.global_batch_size,
                              train::datums_per_term(options.loss) == 2 ? "pairs" : "samples",
                              recipes::describe_loss(options));
  *control.out << fmt::format(
      "targets     {}{}\n", recipes::loss_mask_name(options.rows.loss_mask),
      options.rows.max_length ? fmt::format(", rows cut to {} tokens", *options.rows.max_length) : "");
  const auto steps =
      rows || options.num_steps ? std::optional(recipes::sft_steps(options, rows.value_or(1))) : std::nullopt;
  dry_run.schedule(steps);
  dry_run.settings(recipes::sft_settings(options), steps, start);
  dry_run.notes(notes);
}

void dry_run_rl(const recipes::RlOptions& options, const std::vector<std::string>& notes,
                const recipes::Control& control) {
  const load::Base base = recipes::read_base(options.base);
  const DryRun dry_run{base,
                       options.adapter,
                       options.optimizer,
                       options.training,
                       options.save,
                       recipes::planned_device(recipes::layout_of(options.training), options.base.device),
                       *control.out};
  const DryRun::Start start = dry_run.start();
  const int64_t samples = options.rollout_batch_size * options.n_samples;
  dry_run.model_and_memory(
      recipes::beside_trainer(options, base),
      RolloutShape{.prompts = options.rollout_batch_size, .samples = samples, .tokens = options.sampling.max_tokens});
  if (options.engine.kind)
    *control.out << fmt::format(
        "engine      {}: {}\n", rollout::engine_name(*options.engine.kind),
        hide_secrets(options.engine.addresses.empty() ? options.engine.command
                                                      : fmt::format("{}", fmt::join(options.engine.addresses, ", "))));
  // Made as by the run, for their errors.
  if (!options.debug.train_only)
    rl::make_reward(options.reward, {.input = options.input_key, .metadata = options.metadata_key});
  const recipes::EvalRewards eval_rewards(options);
  const auto is_here = [&](const recipes::EvalSet& set) { return is_readable(set.path, base); };
  std::optional<int64_t> rows;
  std::vector<std::string> held_out;  // of each evaluation set; empty: not read here
  recipes::PromptSet prompts;
  if (is_readable(options.prompt_data, base)) {
    const text::Tokenizer tokenizer = text::Tokenizer::load(base.path.string());
    prompts = recipes::read_prompts(recipes::prompt_source(options, base), tokenizer);
    rows = std::ssize(prompts.prompts);
    *control.out << fmt::format("data        {}\n", prompts_text(prompts, options.prompt_data));
    if (std::ranges::all_of(options.eval_sets, is_here)) {
      const recipes::HeldOutPrompts sets(options, eval_rewards, base, tokenizer);
      for (size_t i = 0; i < sets.size(); ++i)
        held_out.push_back(prompts_text(sets.prompts(i), options.eval_sets[i].path));
    }
  } else {
    *control.out << fmt::format("data        {}\n", rows_text(options.prompt_data, options.max_bad_rows, rows));
  }
  for (size_t i = 0; i < options.eval_sets.size(); ++i) {
    const recipes::EvalSet& set = options.eval_sets[i];
    std::optional<int64_t> ignored;
    *control.out << fmt::format("evaluation  {}: {}, every {} rollouts\n", set.name,
                                held_out.empty() ? rows_text(set.path, options.max_bad_rows, ignored) : held_out[i],
                                options.eval_interval);
  }
  const int64_t steps = samples / options.training.global_batch_size;
  std::optional<int64_t> rollouts = options.num_rollout;
  if (!rollouts && rows) rollouts = *options.num_epoch * *rows / options.rollout_batch_size;
  *control.out << fmt::format(
      "rollout     {} prompts x {} samples = {} samples, at most {} new tokens, temperature {:g}\n",
      options.rollout_batch_size, options.n_samples, samples, options.sampling.max_tokens,
      options.sampling.temperature);
  describe_staleness(options.staleness, *control.out);
  *control.out << fmt::format("batch       {} samples a step, {} steps a rollout, {} rollouts\n",
                              options.training.global_batch_size, steps, count_text(rollouts));
  for (const recipes::SecondTrainerKind* kind : recipes::second_trainers(options))
    kind->describe(options, *control.out);
  const auto actor_steps =
      rollouts ? std::optional(steps * (*rollouts - recipes::rollouts_without_actor(options, *rollouts)))
               : std::nullopt;
  dry_run.schedule(actor_steps);
  dry_run.settings(recipes::rl_settings(options, prompts), actor_steps, start);
  dry_run.notes(notes);
}

}  // namespace lockstep::commands
