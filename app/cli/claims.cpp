#include "cli/claims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "checkpoint/peft_directory.h"
#include "core/error.h"
#include "core/fs.h"
#include "recipes/sampling_fields.h"

namespace lockstep::cli {

namespace {

using Kind = recipes::LaunchClaim::Kind;

using enum Arity;
constexpr std::string_view kSmallCaches = "fp8|fp8_e4m3|fp8_e5m2|fp8_inc|fp8_ds_mla|fp4_e2m1";

constexpr ClaimFlag kTrainClaims[] = {
    {"--rollout-max-context-len", one, Claim::context},
    {"--bf16", none, Claim::weight_type, {}, "bfloat16"},
    {"--fp16", none, Claim::weight_type, {}, "float16"},
    {"--vllm-max-model-len", one, Claim::context},
    {"--vllm-seed", one, Claim::seed},
    {"--vllm-override-generation-config", one, Claim::sampling},
    {"--vllm-logprobs-mode", one, Claim::logprobs},
    {"--vllm-lora-modules", many, Claim::adapters},
    {"--vllm-max-lora-rank", one, Claim::rank},
    {"--vllm-chat-template", one, Claim::chat_template},
    {"--vllm-model", one, Claim::model},
    {"--vllm-tokenizer", one, Claim::model},
    {"--vllm-hf-config-path", one, Claim::model},
    {"--vllm-dtype", one, Claim::weight_type},
    {"--vllm-kv-cache-dtype", one, Claim::cache_type, kSmallCaches},
    {"--vllm-lora-dtype", one, Claim::adapter_type},
    {"--vllm-device", one, Claim::device},
    {"--sglang-context-length", one, Claim::context},
    {"--sglang-random-seed", one, Claim::seed},
    {"--sglang-preferred-sampling-params", one, Claim::sampling},
    {"--sglang-lora-paths", many, Claim::adapters},
    {"--sglang-lora-target-modules", many, Claim::targets},
    {"--sglang-max-lora-rank", one, Claim::rank},
    {"--sglang-chat-template", one, Claim::chat_template},
    {"--sglang-model-path", one, Claim::model},
    {"--sglang-tokenizer-path", one, Claim::model},
    {"--sglang-dtype", one, Claim::weight_type},
    {"--sglang-enable-fp32-lm-head", none, Claim::weight_type, {}, "float32"},
    {"--sglang-kv-cache-dtype", one, Claim::cache_type, kSmallCaches},
    {"--sglang-device", one, Claim::device},
};

constexpr ClaimFlag kServeClaims[] = {
    {"--dtype", one, Claim::weight_type},
    {"--lora-dtype", one, Claim::adapter_type},
};

std::optional<Kind> deferred(Claim claim) {
  switch (claim) {
    case Claim::model: return Kind::model;
    case Claim::context: return Kind::context;
    case Claim::weight_type: return Kind::weight_type;
    case Claim::cache_type: return Kind::cache_type;
    case Claim::adapter_type: return Kind::adapter_type;
    case Claim::device: return Kind::device;
    default: return std::nullopt;
  }
}

[[noreturn]] void differs(const Occurrence& flag, const std::string& what, const std::string& wanted,
                          const std::string& attempt = "drop the flag, or give it this value") {
  throw ConfigError({.what = what,
                     .where = flag.flag,
                     .got = fmt::format("{}", fmt::join(flag.values, " ")),
                     .wanted = wanted,
                     .attempt = attempt});
}

using recipes::RlOptions;

// Each comparison returns the line to print; no line: the claim is one of deferred_claims.

std::string context(const Occurrence& flag, RlOptions& options) {
  const int64_t tokens = parse_integer(flag.flag, flag.values[0], 2, kMany);
  if (options.max_prompt_len >= tokens)
    differs(flag, "a prompt of --rollout-max-prompt-len leaves no room for an answer",
            fmt::format("above --rollout-max-prompt-len {}", options.max_prompt_len));
  for (int64_t* limit : {&options.sampling.max_context, &options.eval_sampling.max_context})
    *limit = *limit == 0 ? tokens : std::min(*limit, tokens);
  return fmt::format("prompts of {} tokens and more are dropped, and an answer ends where it and its prompt have {}",
                     tokens, tokens);
}

std::string seed(const Occurrence& flag, const RlOptions& options) {
  if (static_cast<uint64_t>(parse_integer(flag.flag, flag.values[0], 0, int64_t{9'000'000'000'000'000})) !=
      options.sampling.seed)
    differs(flag, "samples are drawn with another seed", fmt::format("--rollout-seed {}", options.sampling.seed),
            "drop the flag; --rollout-seed is the seed of sampling and of the data order");
  return "the seed of sampling is --rollout-seed, which says the same";
}

// Fields by the names of vLLM, SGLang and transformers.
std::string field_name(const std::string& name) {
  return name == "max_new_tokens" ? "max_tokens" : name == "min_new_tokens" ? "min_tokens" : name;
}

bool same_field(const std::string& name, const OrderedJson& got, const OrderedJson& wanted) {
  if (name == "stop" && got.is_string()) return wanted == OrderedJson::array({got});
  if (name == "top_k" && got.is_number() && got.get<double>() <= 0) return wanted.get<int64_t>() <= 0;
  if (got.is_number() && wanted.is_number())
    return static_cast<float>(got.get<double>()) == static_cast<float>(wanted.get<double>());
  return got == wanted;
}

// Requests of vime, miles and slime bring the fields that the rollout's flags set, so these cannot change them; all
// others would change what is sampled.
std::string sampling(const Occurrence& flag, const RlOptions& options) {
  const OrderedJson json = OrderedJson::parse(flag.values[0], nullptr, false);
  if (!json.is_object()) differs(flag, "bad value of " + flag.flag, "a JSON object, such as {\"top_p\": 0.9}");
  OrderedJson done = recipes::sampling_json(options.sampling);
  done.update({{"do_sample", true}, {"ignore_eos", false}, {"n", 1}});
  for (const auto& [key, value] : json.items()) {
    const std::string name = field_name(key);
    if (value.is_null()) continue;
    if (!done.contains(name))
      differs(flag, fmt::format("{} is no sampling field here", key), "fields that the rollout's flags set",
              "drop the field");
    if (!same_field(name, value, done[name]))
      differs(flag, "rollouts are sampled otherwise", fmt::format("\"{}\": {}", key, done[name].dump()),
              "drop the field; the --rollout-... flags say how rollouts are sampled");
  }
  return "rollouts are sampled so";
}

std::string logprobs(const Occurrence& flag, const RlOptions& options) {
  const std::string& mode = flag.values[0];
  const rollout::SamplingParams& s = options.sampling;
  if (mode != "raw_logprobs" && mode != "processed_logprobs")
    differs(flag, "log-probs are reported, not logits", "raw_logprobs or processed_logprobs");
  if (mode == "raw_logprobs" && s.temperature != 1)
    differs(flag, "log-probs are those of logits / --rollout-temperature", "processed_logprobs");
  if (mode == "processed_logprobs" && (s.top_p != 1 || s.top_k > 0))
    differs(flag, "log-probs are those before --rollout-top-p and --rollout-top-k", "raw_logprobs at temperature 1");
  return "log-probs are those of logits / --rollout-temperature over the whole vocabulary, which is the same here";
}

// NAME=PATH, {"lora_name": ..., "lora_path": ...}, {"name": ..., "path": ...} or PATH.
std::string adapter_path(const std::string& value) {
  if (const OrderedJson json = OrderedJson::parse(value, nullptr, false); json.is_object())
    for (const char* key : {"path", "lora_path"})
      if (json.contains(key) && json[key].is_string()) return json[key].get<std::string>();
  const size_t equals = value.find('=');
  return equals == std::string::npos ? value : value.substr(equals + 1);
}

std::string adapters(const Occurrence& flag, const RlOptions& options) {
  const std::string& start = options.adapter.adapter_path;
  for (const std::string& value : flag.values)
    if (const std::string path = adapter_path(value); start.empty() || (path != start && !fs::same_place(path, start)))
      differs(flag, "rollouts are sampled with the adapter that is trained",
              start.empty() ? "no other adapter" : "--lora-adapter-path " + start,
              "drop the flag; --lora-adapter-path is where the adapter starts");
  return "the adapter that the run starts from";
}

// The adapter that is trained: what the command line leaves out is that of the PEFT directory it starts from.
lora::LoraConfig trained_config(const recipes::AdapterOptions& adapter) {
  lora::LoraConfig config = adapter.config;
  if (adapter.adapter_path.empty()) return config;
  const lora::LoraConfig stored = checkpoint::PeftDirectory(adapter.adapter_path).config();
  if (config.rank == 0) config.rank = stored.rank;
  if (config.target_modules.empty()) config.target_modules = stored.target_modules;
  return config;
}

std::string targets(const Occurrence& flag, const RlOptions& options) {
  const auto is_all = [](const std::string& name) { return name == "all" || name == "all-linear"; };
  if (std::ranges::any_of(flag.values, is_all)) return "any module may have an adapter";
  const std::vector<std::string> trained = trained_config(options.adapter).target_modules;
  const bool covered = !trained.empty() && std::ranges::all_of(trained, [&](const std::string& module) {
    return std::ranges::count(flag.values, module) > 0;
  });
  if (!covered)
    differs(flag, "the engine would be told to refuse modules of the adapter",
            fmt::format("all, or --target-modules {}", fmt::join(trained, " ")));
  return "the modules of --target-modules are among them";
}

std::string rank(const Occurrence& flag, const RlOptions& options) {
  const int64_t trained = trained_config(options.adapter).rank;
  if (parse_integer(flag.flag, flag.values[0], 0, kMany) < trained)
    differs(flag, "the engine would be told to refuse the adapter", fmt::format("at least --lora-rank {}", trained),
            "raise it or drop it");
  return "the engine takes any rank";
}

std::string chat_template(const Occurrence& flag, const RlOptions& options) {
  const std::string& ours = options.chat.template_file;
  if (ours.empty() || (flag.values[0] != ours && !fs::same_place(flag.values[0], ours)))
    differs(flag, "prompts are written by another chat template",
            ours.empty() ? "the model directory's" : "--chat-template " + ours, "--chat-template FILE");
  return "prompts are written by --chat-template, which is the same";
}

std::string compare(const MadeClaim& made, RlOptions& options) {
  switch (made.claim) {
    case Claim::context: return context(made.flag, options);
    case Claim::seed: return seed(made.flag, options);
    case Claim::sampling: return sampling(made.flag, options);
    case Claim::logprobs: return logprobs(made.flag, options);
    case Claim::adapters: return adapters(made.flag, options);
    case Claim::targets: return targets(made.flag, options);
    case Claim::rank: return rank(made.flag, options);
    case Claim::chat_template: return chat_template(made.flag, options);
    default: return "";
  }
}

}  // namespace

std::span<const ClaimFlag> claim_flags() {
  return kTrainClaims;
}
std::span<const ClaimFlag> serve_claim_flags() {
  return kServeClaims;
}

std::vector<recipes::LaunchClaim> deferred_claims(const std::vector<MadeClaim>& claims,
                                                  std::vector<std::string>& notes) {
  std::vector<recipes::LaunchClaim> list;
  for (const MadeClaim& made : claims) {
    const auto kind = deferred(made.claim);
    if (!kind) continue;
    list.push_back({made.flag.flag, made.flag.values[0], *kind});
    if (made.claim != Claim::context)
      notes.push_back(made.flag.flag + ": agrees with the model, its files and the device, or the run would not start");
  }
  return list;
}

void judge_claims(const std::vector<MadeClaim>& claims, recipes::RlOptions& options, std::vector<std::string>& notes) {
  for (const MadeClaim& made : claims)
    if (const std::string line = compare(made, options); !line.empty())
      notes.push_back(fmt::format("{}: {}", made.flag.flag, line));
}

}  // namespace lockstep::cli
