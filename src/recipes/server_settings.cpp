#include "recipes/server_settings.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

using rollout::EngineKind, rollout::LogprobKind;

constexpr const char* kOrUnread = ", or RolloutEngineOptions::policy_logprobs_only";

[[noreturn]] void lacks(const std::string& where, const std::string& what, const std::string& got,
                        const std::string& wanted, const std::string& or_else = "") {
  throw ConfigError({.what = what,
                     .where = where,
                     .got = got,
                     .wanted = wanted,
                     .attempt = "start the server with " + wanted + or_else});
}

// Processed log-probs are those after all of these.
bool cuts(const rollout::SamplingParams& s) {
  return s.top_p < 1 || s.top_k > 0 || s.min_p > 0 || s.min_tokens > 0 || s.repetition_penalty != 1 ||
         s.frequency_penalty != 0 || s.presence_penalty != 0 || !s.logit_bias.empty();
}

void check_logprobs(EngineKind kind, const std::string& where, const rollout::ServerFacts& facts,
                    const rollout::SamplingParams& sampling) {
  if (facts.logprobs == LogprobKind::raw && sampling.temperature != 1)
    lacks(where, "the server's log-probs are those before the temperature",
          fmt::format("raw log-probs, temperature {:g}", sampling.temperature),
          kind == EngineKind::vllm ? "--logprobs-mode processed_logprobs" : "log-probs after the temperature",
          kOrUnread);
  if (!cuts(sampling)) return;
  if (facts.logprobs == LogprobKind::processed)
    throw ConfigError(
        {.what = "the server's log-probs are those after top-p, top-k, min-p and changes of logits, which are not the "
                 "policy's",
         .where = where,
         .got = fmt::format("top_p {:g}, top_k {}, min_p {:g}", sampling.top_p, sampling.top_k, sampling.min_p),
         .wanted = "rollouts with top_p 1, top_k -1 and min_p 0, without penalties, biases and min_tokens",
         .attempt = std::string("these, or temperature 1 and a server with --logprobs-mode raw_logprobs") + kOrUnread});
  if (!facts.logprobs)
    throw ConfigError(
        {.what = "the server does not say whether its log-probs are those before or after top-p and top-k",
         .where = where,
         .wanted = "an answer to /server_info",
         .attempt =
             std::string("VLLM_SERVER_DEV_MODE=1 in the server's environment, rollouts without top-p and top-k") +
             kOrUnread});
}

}  // namespace

void check_base_weights(const std::string& where, const rollout::ServerFacts& facts, rollout::Delivery delivery) {
  if (delivery == rollout::Delivery::weight_files || !facts.weight_version.starts_with(rollout::kWeightsPrefix)) return;
  throw ConfigError({.what = "the server's base was replaced by the merged weights of an earlier run",
                     .where = where,
                     .got = facts.weight_version,
                     .attempt = "start the server again"});
}

void check_settings(EngineKind kind, const std::string& where, const rollout::ServerFacts& facts,
                    const AskedOfServer& asked) {
  constexpr float kCoolest = 0.01F;
  const rollout::EngineFacts& engine = rollout::engine_facts(kind);
  if (asked.sampling.temperature < kCoolest)
    throw ConfigError({.what = "servers do not sample at so low a temperature",
                       .where = "TrainerOptions::temperature",
                       .got = fmt::format("{:g}", asked.sampling.temperature),
                       .wanted = "at least 0.01"});
  if (facts.data_parallel && *facts.data_parallel > 1)
    lacks(where, "a server of several replicas loads a version in one of them", std::to_string(*facts.data_parallel),
          engine.one_replica);
  if (!asked.any_logprobs) check_logprobs(kind, where, facts, asked.sampling);
  if (asked.delivery == rollout::Delivery::weight_files) {
    if (!facts.quantized || asked.force) return;
    throw ConfigError(
        {.what = "the server's base is quantized, and merged weights would be quantized again at every sync",
         .where = where,
         .attempt = "RolloutEngineOptions::delivery as adapters, a server of the unquantized base, or "
                    "RolloutEngineOptions::force"});
  }
  if (facts.lora_enabled == false) lacks(where, "the server takes no adapters", "LoRA is off", "--enable-lora");
  if (facts.max_loras && *facts.max_loras < asked.versions)
    lacks(where, fmt::format("the server has no room for {} versions of an adapter", asked.versions),
          std::to_string(*facts.max_loras),
          fmt::format("{} {}", engine.max_adapters, asked.versions + engine.adapters_of_base));
  if (facts.max_lora_rank && *facts.max_lora_rank < asked.rank)
    lacks(where, "the adapter's rank is above the server's limit", std::to_string(*facts.max_lora_rank),
          fmt::format("--max-lora-rank {}", asked.rank));
}

std::optional<LogprobKind> known_logprobs(EngineKind kind, const std::string& where, std::optional<LogprobKind> said,
                                          std::optional<LogprobKind> measured) {
  if (!measured) return said;
  if (!said && measured == LogprobKind::tempered && kind == EngineKind::vllm) return LogprobKind::processed;
  if (!said) return measured == LogprobKind::raw ? measured : std::nullopt;
  // SGLang's settings do not say what its environment does.
  if (kind == EngineKind::sglang) return measured;
  if ((*said == LogprobKind::raw) == (measured == LogprobKind::raw)) return said;
  const auto name = [](bool raw) { return raw ? "before the temperature" : "after the temperature"; };
  throw ConfigError({.what = "a server's settings and its log-probs contradict each other",
                     .where = where,
                     .got = fmt::format("at temperature 0.7 they are those {}", name(measured == LogprobKind::raw)),
                     .wanted = fmt::format("those {}, as it says", name(*said == LogprobKind::raw))});
}

}  // namespace lockstep::recipes
