#include "cli/parse_shared.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <set>

#include "cli/secret_file.h"
#include "core/error.h"
#include "lora/targets.h"

namespace lockstep::cli {

using recipes::AdapterOptions, recipes::BaseOptions, recipes::OptimizerOptions, recipes::SaveOptions;

namespace {

Binding modules(std::vector<std::string>& target) {
  return {.set = [&target](const std::string& flag, const Values& values) {
    target = lora::split_module_list(values[0]);
    if (target.empty())
      throw ConfigError({.what = flag + " names no module",
                         .where = flag,
                         .got = values[0],
                         .wanted = "all-linear, or names separated by commas"});
  }};
}

Binding init_weights(lora::LoraConfig& config) {
  return {.set = [&config](const std::string& flag, const Values& values) {
    const std::optional<lora::LoraInit> init = lora::lora_init_of(values[0]);
    if (!init)
      throw ConfigError({.what = "no such initialization here",
                         .where = flag,
                         .got = values[0],
                         .wanted = lora::kLoraInitNames,
                         .attempt = "--lora-adapter-path with an adapter that PEFT made so (eva, mica)"});
    config.init = *init;
    config.subtracts_initial = init->changes_base();
  }};
}

}  // namespace

Flag kv_cache_flag(std::optional<int64_t>& bytes) {
  return {"--kv-cache-bytes", "N", number(bytes, 1 << 16, 1e15),
          "upper limit of the KV cache (CPU: half of the available memory, 512 MiB to 64 GiB; GPU: most of the free "
          "memory)"};
}

std::string home_directory() {
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : home;
}

Flag hf_checkpoint_flag(BaseOptions& base) {
  base.home = home_directory();
  return {"--hf-checkpoint", "DIR", text(base.hf_checkpoint),
          "Hugging Face model directory, or a hub id in the local cache"};
}

Flag adapter_path_flag(std::string& path, std::string help) {
  return {"--lora-adapter-path", "DIR", text(path), std::move(help)};
}

Binding eval_sets(std::vector<recipes::EvalSet>& sets) {
  return {.arity = Arity::many, .set = [&sets](const std::string& flag, const Values& values) {
            sets.clear();
            if (values.size() == 1) return sets.push_back({.name = "eval", .path = values[0]});
            if (values.size() % 2 != 0)
              throw ConfigError({.what = flag + " takes pairs of a name and a path",
                                 .where = flag,
                                 .got = fmt::format("{} values", values.size()),
                                 .wanted = "NAME PATH [NAME PATH ...]"});
            std::set<std::string> names;
            for (size_t i = 0; i < values.size(); i += 2) {
              if (!names.insert(values[i]).second)
                throw ConfigError({.what = "two evaluation sets of one name", .where = flag, .got = values[i]});
              sets.push_back({.name = values[i], .path = values[i + 1]});
            }
          }};
}

Flag max_bad_rows_flag(int64_t& rows) {
  return {"--max-bad-rows", "N", number(rows, 0, kMany), "skip up to N bad rows, naming each; one more stops the run"};
}

Flag loss_mask_flag(recipes::LossMaskType& type) {
  const auto set = [&type](const std::string& name) { type = recipes::parse_loss_mask_type(name); };
  return {"--loss-mask-type", "TYPE",
          choice("auto|assistant|completion|all|qwen|qwen3|qwen3_5|distill_qwen", "auto", set),
          "which tokens are targets: auto (the assistant's turns; completions; all of a text) | assistant (also: qwen, "
          "qwen3, qwen3_5, "
          "distill_qwen) | completion | all"};
}

std::vector<Flag> chat_flags(recipes::ChatOptions& chat) {
  const Binding kwargs = {.set = [&chat](const std::string& flag, const Values& values) {
    chat.kwargs = OrderedJson::parse(values[0], nullptr, false);
    if (!chat.kwargs.is_object())
      throw ConfigError({.what = "bad value of " + flag,
                         .where = flag,
                         .got = values[0],
                         .wanted = "a JSON object, such as {\"enable_thinking\": false}"});
  }};
  return {
      {"--apply-chat-template", "", toggle(chat.apply),
       "make one user message of a string prompt (lists are always messages)"},
      {"--apply-chat-template-kwargs", "JSON", kwargs, "variables for the chat template: {\"enable_thinking\": false}"},
      {"--chat-template", "FILE", text(chat.template_file), "chat template to use instead of the model's"},
      {"--chat-template-path", "FILE", text(chat.template_file), "same as --chat-template"},
      {"--tool-key", "KEY", text(chat.tool_key), "key of a row's tools: JSON schemas for the template"}};
}

std::vector<Flag> required_lora_flags(AdapterOptions& adapter) {
  lora::LoraConfig& config = adapter.config;
  Binding rank = number(config.rank, 0, 8192);
  rank.shown.clear();  // 0, no LoRA, is what scripts may say and check_adapter explains
  return {{"--lora-rank", "R", rank, "rank of the adapter"},
          {"--target-modules", "LIST", modules(config.target_modules),
           "all-linear, or names (q_proj,v_proj or linear_qkv,linear_proj)"}};
}

std::vector<Flag> lora_flags(AdapterOptions& adapter) {
  lora::LoraConfig& config = adapter.config;
  return {
      {"--lora-alpha", "A", number(config.alpha, kAboveZero, 1e6), "the adapter's output is scaled by alpha / rank"},
      {"--lora-dropout", "P", number(config.dropout, 0, kBelowOne), "dropout of adapter inputs in training"},
      {"--use-rslora", "", toggle(config.use_rslora), "scale by alpha / sqrt(rank)"},
      {"--lora-type", "TYPE",
       choice("lora|canonical_lora", lora::lora_type_name(config.type),
              [&config](const std::string& name) { config.type = lora::parse_lora_type(name); }),
       "lora (q, k, v share one A) | canonical_lora (a pair each, as PEFT)"},
      {"--exclude-modules", "LIST", modules(config.exclude_modules), "modules that --target-modules leaves out"},
      {"--init-lora-weights", "INIT", init_weights(config),
       "first values: true (B = 0) | gaussian | false | orthogonal | pissa | pissa_niter_N | olora, as PEFT's"},
      {"--use-dora", "", toggle(config.use_dora), "DoRA: a trained magnitude of each row of a target's weight"},
      {"--lora-bias", "WHICH",
       choice("none|lora_only|all", "none",
              [&config](const std::string& name) { config.bias = *lora::trained_biases_of(name); }),
       "biases that are trained in copies of the adapter's own: none | lora_only (of the targets) | all"},
      {"--modules-to-save", "LIST", modules(config.modules_to_save),
       "embed_tokens, lm_head: weights trained whole, in copies of the adapter's own"},
      adapter_path_flag(adapter.adapter_path,
                        "start from this PEFT directory; rank, alpha, rsLoRA, type and modules come from it, and flags "
                        "that differ are an error")};
}

std::vector<Flag> optimizer_flags(OptimizerOptions& optimizer) {
  train::Schedule& schedule = optimizer.schedule;
  return {{"--lr", "X", number(schedule.lr, 0, 1), "learning rate; adapters often want 1e-5 (RL) to 1e-4 (SFT)"},
          {"--min-lr", "X", number(schedule.min_lr, 0, 1), "learning rate at the end of the decay"},
          {"--lr-decay-style", "STYLE",
           choice(
               "constant|linear|cosine|WSD", "constant",
               [&schedule](const std::string& name) { schedule.style = train::parse_decay_style(name); },
               "inverse-square-root"),
           "constant | linear | cosine | WSD (flat, then falling)"},
          {"--lr-decay-iters", "N", number(optimizer.decay_steps, 1, kMany),
           "steps until --min-lr is reached, warm-up included (default: all)"},
          {"--lr-warmup-iters", "N", number(schedule.warmup_steps, 0, kMany), "steps of linear warm-up"},
          {"--lr-warmup-fraction", "F", number(optimizer.warmup_fraction, 0, kBelowOne),
           "length of the warm-up as a fraction of the decay"},
          {"--lr-wsd-decay-style", "STYLE",
           choice("exponential|linear|cosine|minus_sqrt", "exponential",
                  [&schedule](const std::string& name) { schedule.wsd_style = train::parse_wsd_style(name); }),
           "shape of WSD's decay: exponential | linear | cosine | minus_sqrt"},
          {"--lr-wsd-decay-iters", "N", number(optimizer.wsd_decay_steps, 1, kMany),
           "number of final steps in which WSD decays"},
          {"--loraplus-lr-ratio", "R", number(optimizer.loraplus_lr_ratio, kAboveZero, 1e4),
           "LoRA+: learning rate of B over that of A"},
          {"--adam-beta1", "B", number(optimizer.beta1, 0, kBelowOne), "decay of the first moment"},
          {"--adam-beta2", "B", number(optimizer.beta2, 0, kBelowOne), "decay of the second moment"},
          {"--adam-eps", "X", number(optimizer.eps, kAboveZero, 1), "added to the denominator"},
          {"--weight-decay", "X", number(optimizer.weight_decay, 0, 10), "decoupled weight decay of A and B"},
          {"--clip-grad", "X", number(optimizer.clip_grad, 0, 1e6), "clip the gradient to this norm (0: off)"}};
}

Flag ref_load_flag(std::string& path) {
  return {"--ref-load", "DIR", text(path),
          "the reference: the base (as without this), by its path or another, or an adapter on it"};
}

Flag without_flag() {
  return {std::string(kWithout),
          "FLAG,FLAG",
          {.arity = Arity::many, .set = [](const std::string&, const Values&) {}},
          "ignore these flags of a script: layouts (tensor-model-parallel-size) and reports (use-wandb), which change "
          "no result"};
}

std::vector<Flag> checkpoint_flags(SaveOptions& save) {
  return {
      {"--save", "DIR", text(save.save), "checkpoints, the adapter and metrics.jsonl go here"},
      {"--save-interval", "N", number(save.save_interval, 1, kMany),
       "iterations between checkpoints; the last iteration is always saved"},
      {"--save-total-limit", "N", number(save.total_limit, 1, kMany),
       "only the newest N checkpoints stay, and the best one"},
      {"--save-retain-interval", "N", number(save.retain_interval, 1, kMany),
       "only those of every N-th iteration stay, and the newest (or as many as the flag before says)"},
      {"--save-trigger-sentinel", "FILE", text(save.trigger_sentinel),
       "while this file exists the iteration is saved; it is removed when the checkpoint is on the disk"},
      {"--grace-period", "SECONDS", number(save.grace_seconds, 0, 86400),
       "after Ctrl-C, SIGTERM or SIGUSR2 the iteration under way has so long to stop; then the program ends without "
       "saving (0: no limit). The save that follows has no limit"},
      {"--load", "DIR", text(save.load), "resume from the newest whole checkpoint there, bit for bit"},
      {"--ckpt-step", "N", number(save.ckpt_step, 0, kMany), "--load: from this iteration"},
      {"--finetune", "", toggle(save.finetune), "--load: only the adapter; a new run from iteration 0"},
      {"--no-load-optim", "", toggle(save.load_optimizer, false), "--load: the optimizer and its schedule start anew"},
      {"--no-load-rng", "", toggle(save.load_rng, false), "--load: seeds may be others than the checkpoint's"},
      {"--override", "NAME...", texts(save.overrides),
       "--load: these settings may be others than the checkpoint's (lr, prompt-data ...)"}};
}

std::vector<Flag> machine_flags(BaseOptions& base) {
  return {
      {"--threads", "N", number(base.stream.threads, 0, max_threads()), "threads (0: all cores); never changes a bit"},
      {"--cpu-isa", "ISA",
       choice("auto|avx2|avx512", "auto", [&base](const std::string& name) { base.stream.isa = parse_cpu_isa(name); }),
       "auto | avx2 | avx512; never changes a bit"},
      {"--device", "NAME", choice("auto|cpu|cuda", "auto", [&base](const std::string& name) { base.device = name; }),
       "auto (a GPU if there is one) | cpu | cuda"},
      {"--numerics", "MODE",
       choice("exact|fast", "exact",
              [&base](const std::string& name) {
                base.stream.numerics = name == "fast" ? Numerics::fast : Numerics::exact;
              }),
       "exact: rollout and trainer agree bit for bit | fast: matmuls on a GPU may split sums (split-K); the "
       "difference is printed"},
      {"--load-format", "HOW",
       choice(
           "auto|dummy", "auto",
           [&base](const std::string& name) {
             base.load_format = name == "dummy" ? recipes::LoadFormat::dummy : recipes::LoadFormat::automatic;
           },
           "safetensors|pt|npcache|gguf|bitsandbytes|mistral|sharded_state|tensorizer|runai_streamer"),
       "auto | dummy: random weights in the shapes of config.json; needs no weight files"}};
}

std::vector<Flag> activation_flags(recipes::TrainingOptions& training) {
  using recipes::Recompute;
  const auto set = [&training](const std::string& how) {
    training.recompute = how == "full"        ? Recompute::full
                         : how == "selective" ? Recompute::selective
                         : how == "none"      ? Recompute::none
                                              : Recompute::automatic;
  };
  return {{"--max-tokens-per-gpu", "N", number(training.max_tokens, 1, 100'000'000),
           "largest micro-batch in tokens; affects memory and speed only"},
          {"--recompute", "HOW", choice("auto|none|selective|full", "auto", set),
           "what the backward pass recomputes: full: whole blocks | selective: norms, activation functions, "
           "rotated q and k, x A | none: norms | auto: on a GPU the least that its memory allows, on a CPU selective"},
          {"--recompute-granularity", "HOW", choice("full|selective", "", set),
           "same as --recompute, under Megatron's name"},
          {"--gradient-checkpointing",
           "",
           {.arity = Arity::none, .set = [set](const std::string&, const Values&) { set("full"); }},
           "--recompute full"}};
}

std::vector<Flag> training_machine_flags(recipes::TrainingOptions& training, bool& dry_run) {
  std::vector<Flag> flags = activation_flags(training);
  const std::vector<Flag> others = {
      {"--seed", "N", number(training.seed, 0, 9e15), "seed of the adapter's initial values and of dropout"},
      {"--max-skipped-steps", "N", number(training.max_skipped_steps, 0, kMany),
       "steps with a loss or gradient that is not finite are abandoned; after more of them the run stops"},
      {"--gradient-lanes", "N",
       choice("8|16|32|64", "8", [&training](const std::string& lanes) { training.gradient_lanes = std::stoi(lanes); }),
       "parts in which a step's gradient is added up, which decides bits; the number of ranks divides it"},
      {"--dry-run", "", toggle(dry_run), "check everything, print what would run, exit"},
      without_flag()};
  flags.insert(flags.end(), others.begin(), others.end());
  return flags;
}

std::string training_closing(const std::string& example) {
  return "Launch scripts of vime, miles and slime run as they are. Model-shape flags are checked against config.json;\n"
         "flags without meaning here (--offload, --tensor-model-parallel-size 1, --sglang-mem-fraction-static ...) "
         "print one\n"
         "line saying what they map to; what a script says of the engine's results (--vllm-max-model-len, "
         "--sglang-dtype ...)\n"
         "is applied, agrees, or is an error. Flags that are not available yet are named together in one error, which "
         "ends\n"
         "with the --without that leaves out those that change no result.\n\n"
         "Example:\n" +
         example;
}

Classified parse_flags(const Values& args, const FlagSet& flags, const std::vector<std::string_view>& required,
                       size_t num_positionals) {
  Classified given = classify(args, flags, Scripts::none, nullptr, num_positionals);
  bind(given, flags);
  require(given, required);
  return given;
}

void require(const Classified& given, const std::vector<std::string_view>& flags) {
  std::vector<std::string_view> missing;
  for (const std::string_view flag : flags)
    if (given.given(flag) == nullptr) missing.push_back(flag);
  if (!missing.empty())
    throw ConfigError(
        {.what = fmt::format("missing: {}", fmt::join(missing, ", ")), .attempt = "--help shows an example"});
}

void resolve_adapter(AdapterOptions& adapter, const Classified& given) {
  adapter.asked_alpha = given.given("--lora-alpha") != nullptr;
  adapter.asked_rslora = given.given("--use-rslora") != nullptr;
  adapter.asked_type = given.given("--lora-type") != nullptr;
  adapter.asked_init = given.given("--init-lora-weights") != nullptr;
  adapter.asked_dora = given.given("--use-dora") != nullptr;
  adapter.asked_bias = given.given("--lora-bias") != nullptr;
  adapter.asked_modules_to_save = given.given("--modules-to-save") != nullptr;
  for (const char* flag : {"--only-train-params-name-list", "--freeze-params-name-list"})
    if (given.given(flag) != nullptr)
      throw ConfigError({.what = fmt::format("LoRA excludes {}", flag),
                         .where = flag,
                         .attempt = "drop it; --target-modules and --exclude-modules say what is trained"});
  const int64_t rank = adapter.config.rank;
  if (rank == 0 && adapter.adapter_path.empty())
    throw ConfigError({.what = "this program trains adapters: give --lora-rank",
                       .where = "--lora-rank",
                       .got = "0",
                       .wanted = "1 or more",
                       .attempt = "--lora-rank 16 --target-modules all-linear"});
  if (rank > 0 && adapter.config.target_modules.empty() && adapter.adapter_path.empty())
    throw ConfigError({.what = "--lora-rank needs --target-modules",
                       .where = "--target-modules",
                       .attempt = "--target-modules all-linear"});
}

void check_schedule(const OptimizerOptions& optimizer, const Classified& given) {
  const train::Schedule& schedule = optimizer.schedule;
  if (schedule.min_lr > schedule.lr)
    throw ConfigError({.what = "--min-lr is above --lr",
                       .where = "--min-lr",
                       .got = shown_number(schedule.min_lr),
                       .wanted = "at most " + shown_number(schedule.lr)});
  if (given.given("--lr-warmup-iters") != nullptr && given.given("--lr-warmup-fraction") != nullptr)
    throw ConfigError({.what = "--lr-warmup-iters and --lr-warmup-fraction exclude each other", .attempt = "keep one"});
  const bool wsd = schedule.style == train::DecayStyle::wsd;
  if (wsd && !optimizer.wsd_decay_steps)
    throw ConfigError({.what = "--lr-decay-style WSD needs --lr-wsd-decay-iters",
                       .where = "--lr-wsd-decay-iters",
                       .attempt = "the number of steps in which the rate falls, at the end"});
  if (!wsd)
    for (const char* flag : {"--lr-wsd-decay-iters", "--lr-wsd-decay-style"})
      if (given.given(flag) != nullptr)
        throw ConfigError({.what = fmt::format("{} needs --lr-decay-style WSD", flag), .where = flag});
  if (optimizer.decay_steps && schedule.warmup_steps >= *optimizer.decay_steps)
    throw ConfigError({.what = "the warm-up does not end before the decay",
                       .where = "--lr-warmup-iters",
                       .got = shown_number(schedule.warmup_steps),
                       .wanted = fmt::format("below --lr-decay-iters {}", *optimizer.decay_steps)});
}

void check_evaluation(const std::vector<recipes::EvalSet>& sets, int64_t interval, std::vector<std::string>& notes) {
  if (interval > 0 && sets.empty())
    throw ConfigError({.what = "--eval-interval needs --eval-prompt-data",
                       .where = "--eval-interval",
                       .attempt = "--eval-prompt-data NAME PATH"});
  if (interval == 0 && !sets.empty())
    notes.push_back("--eval-prompt-data without --eval-interval: nothing is evaluated");
}

void check_save(const SaveOptions& save, const Classified& given) {
  const auto needs = [&](const std::string& value, const char* owner, std::initializer_list<const char*> flags) {
    for (const char* flag : flags)
      if (value.empty() && given.given(flag) != nullptr)
        throw ConfigError(
            {.what = fmt::format("{} needs {}", flag, owner), .where = flag, .attempt = fmt::format("{} DIR", owner)});
  };
  needs(save.save, "--save",
        {"--save-interval", "--save-total-limit", "--save-retain-interval", "--save-trigger-sentinel"});
  needs(save.load, "--load", {"--ckpt-step", "--finetune", "--no-load-optim", "--no-load-rng", "--override"});
}

OrderedJson resolved_arguments(const FlagSet& flags, const Classified& given) {
  OrderedJson arguments;
  for (const FlagSet::Group& group : flags.groups())
    for (const Flag& flag : group.flags) {
      const Occurrence* occurrence = given.given(flag.name);
      if (occurrence == nullptr)
        arguments[flag.name] = flag.binding.arity == Arity::none ? OrderedJson(false) : OrderedJson(flag.binding.shown);
      else if (flag.binding.arity == Arity::none)
        arguments[flag.name] = true;
      else if (is_secret(flag.name))
        arguments[flag.name] = kHiddenSecret;
      else if (flag.binding.arity == Arity::one)
        arguments[flag.name] = occurrence->values.front();
      else
        arguments[flag.name] = occurrence->values;
    }
  return arguments;
}

void check_scripts(const Classified& given) {
  if (given.given("--use-dynamic-batch-size") != nullptr && given.given("--max-tokens-per-gpu") == nullptr)
    throw ConfigError({.what = "--use-dynamic-batch-size needs --max-tokens-per-gpu",
                       .where = "--max-tokens-per-gpu",
                       .attempt = "--max-tokens-per-gpu 2048"});
}

void note_exclusions(const lora::LoraConfig& config, std::vector<std::string>& notes) {
  if (const auto shared = lora::excluded_but_shared(config); !shared.empty())
    notes.push_back(
        fmt::format("--exclude-modules {}: trained all the same, for siblings share one A with --lora-type "
                    "lora; canonical_lora leaves them out",
                    fmt::join(shared, ",")));
}

}  // namespace lockstep::cli
