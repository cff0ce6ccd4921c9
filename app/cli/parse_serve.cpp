// lockstep serve.
#include <algorithm>

#include "cli/claims.h"
#include "cli/command_line.h"
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "commands/commands.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

using server::LoraModule, server::ServeOptions;

[[noreturn]] void bad_module(const std::string& flag, const std::string& got) {
  throw ConfigError({.what = "bad value of " + flag,
                     .where = flag,
                     .got = got,
                     .wanted = "NAME=PATH, or {\"name\": NAME, \"path\": PATH}"});
}

LoraModule lora_module(const std::string& flag, const std::string& text) {
  if (text.starts_with('{')) {
    const OrderedJson json = OrderedJson::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("name") || !json.contains("path") || !json["name"].is_string() ||
        !json["path"].is_string())
      bad_module(flag, text);
    return {json["name"].get<std::string>(), json["path"].get<std::string>()};
  }
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) bad_module(flag, text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Binding lora_modules(std::vector<LoraModule>& modules) {
  return {.arity = Arity::many, .set = [&modules](const std::string& flag, const Values& values) {
            modules.clear();
            for (const std::string& value : values) modules.push_back(lora_module(flag, value));
          }};
}

Binding seconds(std::chrono::seconds& target) {
  return {.shown = shown_number(target.count()), .set = [&target](const std::string& flag, const Values& values) {
            target = std::chrono::seconds(parse_integer(flag, values[0], 0, kMany));
          }};
}

std::vector<Flag> template_flags(recipes::ChatOptions& chat, bool& request_template) {
  std::vector<Flag> flags;
  for (Flag& flag : chat_flags(chat))
    if (flag.name == "--chat-template") flags.push_back(std::move(flag));
  Binding kwargs;
  for (Flag& flag : chat_flags(chat))
    if (flag.name == "--apply-chat-template-kwargs") kwargs = flag.binding;
  flags.push_back({"--default-chat-template-kwargs", "JSON", kwargs,
                   "variables for the chat template, unless a request sets them"});
  flags.push_back({"--trust-request-chat-template", "", toggle(request_template),
                   "let requests bring a chat_template, which runs in a sandbox with limits"});
  return flags;
}

FlagSet serve_flags(ServeOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base)});
  flags.add("Address", {{"--host", "ADDRESS", text(o.host), "where to listen; 0.0.0.0: everywhere"},
                        {"--port", "N", number(o.port, 0, 65535), "0: any free port, which the first line names"},
                        {"--api-key", "KEY...", texts(o.api_keys), "clients must send one: Authorization: Bearer KEY"},
                        {"--served-model-name", "NAME...", texts(o.served_model_names), "what clients call the base"}});
  flags.add(
      "Engine",
      {{"--max-model-len", "N", number(o.max_model_len, 1, kMany), "tokens of prompt and answer (the model's)"},
       {"--max-num-seqs", "N", number(o.max_num_seqs, 1, 65536), "most sequences generated at once"},
       {"--max-num-batched-tokens", "N", number(o.max_num_batched_tokens, 1, kMany),
        "tokens of one step; longer prompts take several (CPU 512; GPU 16384)"},
       {"--num-scheduler-steps", "N", number(o.num_scheduler_steps, 1, 16),
        "on a GPU: decode steps until new requests may join; fewer give lower latency, more give higher throughput"},
       kv_cache_flag(o.kv_bytes),
       {"--no-enable-prefix-caching", "", toggle(o.prefix_cache, false),
        "do not reuse the KV cache of prompts with a common prefix"},
       {"--max-queue", "N", number(o.max_queue, 1, kMany), "samples that may wait; more are answered 429"},
       {"--max-payload-size", "BYTES", number(o.max_payload_size, 1024, kMany),
        "largest body of a request; larger ones are answered 413"},
       {"--drain-timeout", "SECONDS", seconds(o.drain_timeout),
        "how long requests in flight may take after SIGTERM before they are aborted"}});
  flags.add(
      "Adapters",
      {{"--lora-modules", "NAME=PATH...", lora_modules(o.lora_modules), "load these before the server is ready"},
       {"--max-loras", "N", number(o.max_loras, 1, 65536), "adapters loaded at once; one batch may use all of them"},
       {"--max-lora-rank", "R", number(o.max_lora_rank, 1, 8192), "a larger rank is refused"},
       {"--lora-root", "DIR", text(o.lora_root), "read adapters below this directory only"},
       {"--keep-adapter-versions", "N", number(o.keep_versions, 1, 65536),
        "versions of each name that requests can pin, the newest included"}});
  flags.add("Base weights",
            {{"--enable-weight-updates", "", toggle(o.weight_updates),
              "routes that bring other base weights, and that give memory back and take it again"},
             {"--weights-root", "DIR", text(o.weights_root),
              "read base weights below this directory only (default: --lora-root; neither: none)"},
             {"--max-weights-payload-size", "BYTES", number(o.max_weights_payload_size, 1024, 1000 * kMany),
              "largest body that brings weights or tensors of an adapter"}});
  flags.add(
      "Answers",
      {{"--generation-config", "FROM", text(o.generation_config),
        "sampling fields a request leaves out: auto (the model's generation_config.json) | vllm (none) | DIR"},
       {"--max-logprobs", "N", number(o.max_logprobs, -1, rollout::SamplingParams::kMaxTopLogprobs),
        "most log-probs of a token; -1: as many as the engine reports, 128"},
       {"--logprobs-mode", "MODE",
        choice("raw_logprobs|processed_logprobs", "raw_logprobs",
               [&o](const std::string& mode) { o.processed_logprobs = mode == "processed_logprobs"; }),
        "log-probs of the logits, or of the logits divided by the temperature (then not with top-p, top-k or min-p)"},
       {"--return-tokens-as-token-ids", "", toggle(o.tokens_as_ids), "\"token_id:N\" for tokens in log-probs"},
       {"--enable-prompt-tokens-details", "", toggle(o.prompt_tokens_details),
        "report in `usage` how many tokens of the prompt were cached"},
       {"--seed", "N", number(o.seed, 0, 9e15),
        "requests without a seed get seeds derived from this one, in order of arrival (default: random)"},
       {"--log-requests", "", toggle(o.log_requests), "log one line per answered request"}});
  flags.add("Answers", template_flags(o.chat, o.request_chat_template));
  flags.add("Machine", machine_flags(o.base));
  flags.add("Machine", {without_flag()});
  return flags;
}

void check_names(const ServeOptions& options) {
  for (size_t i = 0; i < options.lora_modules.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (options.lora_modules[i].name == options.lora_modules[j].name)
        throw ConfigError(
            {.what = "two adapters of one name", .where = "--lora-modules", .got = options.lora_modules[i].name});
  if (options.lora_modules.size() > static_cast<size_t>(options.max_loras))
    throw ConfigError({.what = "more adapters than --max-loras",
                       .where = "--lora-modules",
                       .got = std::to_string(options.lora_modules.size()),
                       .wanted = "at most " + std::to_string(options.max_loras)});
  if (std::ranges::count(options.api_keys, "") > 0)
    throw ConfigError({.what = "an API key is empty", .where = "--api-key"});
  if (!options.weights_root.empty() && !options.weight_updates)
    throw ConfigError(
        {.what = "no route reads base weights", .where = "--weights-root", .attempt = "--enable-weight-updates"});
  const bool is_local = options.host == "127.0.0.1" || options.host == "localhost" || options.host == "::1";
  if (options.weight_updates && options.api_keys.empty() && !is_local)
    throw ConfigError({.what = "anyone who reaches this address could replace the weights",
                       .where = "--enable-weight-updates",
                       .got = "--host " + options.host + " without a key",
                       .wanted = "--api-key",
                       .attempt = "--api-key KEY, or --host 127.0.0.1"});
}

}  // namespace

server::ServeOptions parse_serve(const Values& args) {
  ServeOptions options;
  const FlagSet flags = serve_flags(options);
  Classified given = classify(args, flags, Scripts::serve);
  bind(given, flags);
  require(given, {"--hf-checkpoint"});
  check_names(options);
  options.version = kVersion;
  options.build = commands::build_commit();
  options.claims = deferred_claims(given.claims, given.notes);
  if (const Occurrence* length = given.given("--max-model-len"))
    options.claims.push_back({length->flag, length->values[0], recipes::LaunchClaim::Kind::context});
  options.notes = std::move(given.notes);
  return options;
}

std::string serve_help() {
  ServeOptions options;
  return serve_flags(options).help(
      "serve",
      "The rollout engine over HTTP: OpenAI's and vLLM's routes (/v1/completions, /v1/chat/completions, /v1/models), "
      "adapters\nloaded, replaced and unloaded while it serves (/v1/load_lora_adapter; SGLang's /load_lora_adapter and "
      "/generate),\n/health and /metrics. docs/server.md lists routes and fields.",
      "Examples:\n  lockstep serve --hf-checkpoint DIR --port 8000 --lora-modules mine=run/iter_0000100/lora_adapter\n"
      "  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"model\": \"mine\", \"prompt\": \"12+34=\", \"max_tokens\": 16, \"temperature\": 0}'\n"
      "  curl http://127.0.0.1:8000/v1/load_lora_adapter -H 'Content-Type: application/json' \\\n"
      "    -d '{\"lora_name\": \"mine\", \"lora_path\": \"run/iter_0000200/lora_adapter\", \"load_inplace\": true}'\n\n"
      "SIGTERM, SIGHUP and Ctrl-C drain: new requests are answered 503, the program ends when those in flight have; a "
      "second\nSIGTERM or Ctrl-C stops at once. A request is answered by one version of its adapter, also when the "
      "name "
      "is\nreloaded meanwhile.");
}

}  // namespace lockstep::cli
