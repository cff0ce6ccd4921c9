#include "cli/adapter_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "core/error.h"
#include "lora/targets.h"

namespace lockstep::cli {

using recipes::AdapterOptions;

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
                         .attempt = "--lora-adapter-path with an adapter that PEFT made so (eva)"});
    config.init = *init;
    config.subtracts_initial = init->changes_base();
  }};
}

}  // namespace

Flag adapter_path_flag(std::string& path, std::string help) {
  return {"--lora-adapter-path", "DIR", text(path), std::move(help)};
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
                        "that differ are an error; dropout comes from it unless --lora-dropout is given")};
}

void resolve_adapter(AdapterOptions& adapter, const Classified& given) {
  adapter.asked_alpha = given.given("--lora-alpha") != nullptr;
  adapter.asked_rslora = given.given("--use-rslora") != nullptr;
  adapter.asked_type = given.given("--lora-type") != nullptr;
  adapter.asked_dropout = given.given("--lora-dropout") != nullptr;
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

void note_exclusions(const lora::LoraConfig& config, std::vector<std::string>& notes) {
  const lora::SharedSiblings shared = lora::shared_siblings(config);
  constexpr const char* kWhy = "for siblings share one A with --lora-type lora; canonical_lora leaves them out";
  if (!shared.excluded.empty())
    notes.push_back(
        fmt::format("--exclude-modules {}: trained all the same, {}", fmt::join(shared.excluded, ","), kWhy));
  if (!shared.unnamed.empty())
    notes.push_back(fmt::format("--target-modules: also trained is {}, {}", fmt::join(shared.unnamed, ","), kWhy));
}

}  // namespace lockstep::cli
