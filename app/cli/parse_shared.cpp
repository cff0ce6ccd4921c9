#include "cli/parse_shared.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>

#include "cli/secret_file.h"
#include "core/error.h"
#include "core/hidden_secrets.h"
#include "recipes/base.h"

namespace lockstep::cli {

using recipes::BaseOptions;

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

namespace {

// The names of recipes::load_formats, for choice.
std::string_view load_format_names() {
  static const std::string names = [] {
    std::vector<std::string_view> all;
    for (const recipes::LoadFormat& format : recipes::load_formats()) all.push_back(format.name);
    return fmt::format("{}", fmt::join(all, "|"));
  }();
  return names;
}

// vLLM's other names, which are not built.
std::string_view later_load_formats() {
  constexpr std::string_view kNames =
      "safetensors|pt|npcache|gguf|bitsandbytes|mistral|sharded_state|tensorizer|runai_streamer";
  static const std::string names = [&] {
    std::vector<std::string_view> later = split_names(kNames);
    std::erase_if(later, [](std::string_view name) {
      return std::ranges::find(recipes::load_formats(), name, &recipes::LoadFormat::name) !=
             recipes::load_formats().end();
    });
    return fmt::format("{}", fmt::join(later, "|"));
  }();
  return names;
}

std::string load_format_help() {
  std::string help;
  for (const recipes::LoadFormat& format : recipes::load_formats())
    help += fmt::format("{}{}: {}", help.empty() ? "" : " | ", format.name, format.help);
  return help;
}

}  // namespace

std::vector<Flag> machine_flags(BaseOptions& base) {
  return {
      {"--threads", "N", number(base.stream.threads, 0, max_threads()), "threads (0: all cores); never changes a bit"},
      {"--cpu-isa", "ISA",
       choice("auto|avx2|avx512", "auto", [&base](const std::string& name) { base.stream.isa = parse_cpu_isa(name); }),
       "auto | avx2 | avx512; never changes a bit"},
      {"--device", "NAME", choice("auto|cpu|cuda", "auto", [&base](const std::string& name) { base.device = name; }),
       "auto (a GPU if there is one) | cpu | cuda"},
      {"--load-format", "HOW",
       choice(
           load_format_names(), "auto", [&base](const std::string& name) { base.load_format = name; },
           later_load_formats()),
       load_format_help()}};
}

std::vector<Flag> activation_flags(recipes::TrainingOptions& training) {
  // With "auto" it stays empty: the memory plan chooses.
  const auto set = [&training](const std::string& how) { training.recompute = model::recompute_named(how); };
  return {{"--max-tokens-per-gpu", "N", number(training.max_tokens, 1, 100'000'000),
           "largest micro-batch in tokens; affects memory and speed only (longer samples, and up to 4096 tokens of "
           "samples with one prompt, stay whole)"},
          {"--recompute", "HOW", choice("auto|none|norms|selective|full", "auto", set),
           "what the backward pass recomputes: full: whole blocks | selective: norms, activation functions, "
           "rotated q and k, x A | norms | none | auto: on a GPU the least that its memory allows, on a CPU selective"},
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
      {"--dry-run", "", toggle(dry_run),
       "check flags, data and rewards, print what would run, exit; reads no weights and starts no reward program"},
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
  constexpr std::string_view kOr = " or ";
  const auto is_given = [&](std::string_view choice) {
    for (size_t end = choice.find(kOr); end != choice.npos; end = choice.find(kOr)) {
      if (given.given(choice.substr(0, end)) != nullptr) return true;
      choice.remove_prefix(end + kOr.size());
    }
    return given.given(choice) != nullptr;
  };
  std::vector<std::string_view> missing;
  std::ranges::remove_copy_if(flags, std::back_inserter(missing), is_given);
  if (!missing.empty())
    throw ConfigError(
        {.what = fmt::format("missing: {}", fmt::join(missing, ", ")), .attempt = "--help shows an example"});
}

void check_evaluation(const std::vector<recipes::EvalSet>& sets, int64_t interval, std::vector<std::string>& notes) {
  if (interval > 0 && sets.empty())
    throw ConfigError({.what = "--eval-interval needs --eval-prompt-data",
                       .where = "--eval-interval",
                       .attempt = "--eval-prompt-data NAME PATH"});
  if (interval == 0 && !sets.empty())
    notes.push_back("--eval-prompt-data without --eval-interval: nothing is evaluated");
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
      else if (names_a_secret(flag.name))
        arguments[flag.name] = kHiddenSecret;
      else if (flag.binding.arity == Arity::one)
        arguments[flag.name] = hide_secrets(occurrence->values.front());
      else
        for (const std::string& value : occurrence->values) arguments[flag.name].push_back(hide_secrets(value));
    }
  return arguments;
}

void check_scripts(const Classified& given) {
  if (given.given("--use-dynamic-batch-size") != nullptr && given.given("--max-tokens-per-gpu") == nullptr)
    throw ConfigError({.what = "--use-dynamic-batch-size needs --max-tokens-per-gpu",
                       .where = "--max-tokens-per-gpu",
                       .attempt = "--max-tokens-per-gpu 2048"});
}

}  // namespace lockstep::cli
