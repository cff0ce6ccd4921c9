#include "recipes/sampling_defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string_view>

#include "core/printable.h"

namespace lockstep::recipes {

namespace {

// Keys that are read here or elsewhere, or say nothing about sampling.
constexpr std::string_view kKnownKeys[] = {"temperature",
                                           "top_p",
                                           "top_k",
                                           "min_p",
                                           "repetition_penalty",
                                           "do_sample",
                                           "eos_token_id",
                                           "bos_token_id",
                                           "pad_token_id",
                                           "_from_model_config",
                                           "use_cache",
                                           "transformers_version",
                                           "trust_remote_code"};

void note_unused_keys(const Json& config, std::ostream& info) {
  static const Json defaults = {{"encoder_repetition_penalty", 1},
                                {"length_penalty", 1},
                                {"no_repeat_ngram_size", 0},
                                {"num_beams", 1},
                                {"num_beam_groups", 1},
                                {"num_return_sequences", 1},
                                {"diversity_penalty", 0},
                                {"typical_p", 1},
                                {"epsilon_cutoff", 0},
                                {"eta_cutoff", 0},
                                {"min_length", 0}};
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::count(kKnownKeys, key) > 0 || value.is_null() || value == false || value == "") continue;
    if (value.is_structured() && value.empty()) continue;
    if (const auto usual = defaults.find(key); usual != defaults.end() && *usual == value) continue;
    info << fmt::format(
        "note    generation_config.json: {} {} is not used{}\n", printable(key), value.dump(),
        key == "max_new_tokens" || key == "max_length" ? "; SamplingOptions::max_tokens limits the answer" : "");
  }
}

}  // namespace

SamplingDefaults read_sampling_defaults(const std::optional<Json>& generation_config, const std::string& where,
                                        std::ostream* info) {
  SamplingDefaults defaults;
  if (!generation_config) return defaults;
  const JsonObject config(*generation_config, where);
  if (info != nullptr) note_unused_keys(*generation_config, *info);
  const auto number = [&](const char* key, std::optional<float>& target) {
    if (config.has(key)) target = static_cast<float>(config.number(key));
  };
  number("temperature", defaults.temperature);
  number("top_p", defaults.top_p);
  number("min_p", defaults.min_p);
  number("repetition_penalty", defaults.repetition_penalty);
  if (config.has("top_k")) defaults.top_k = config.integer("top_k");
  if (config.has("max_new_tokens")) defaults.max_new_tokens = config.integer("max_new_tokens");
  defaults.greedy = !config.boolean("do_sample", true);
  return defaults;
}

rollout::SamplingParams resolve_sampling(const SamplingOptions& options, const Base& base, std::ostream* info) {
  const SamplingDefaults defaults =
      read_sampling_defaults(base.generation_config, (base.path / "generation_config.json").string(), info);
  rollout::SamplingParams params;
  const auto pick = [](auto& field, const auto& users, const auto& models) {
    if (users)
      field = *users;
    else if (models)
      field = *models;
  };
  pick(params.temperature, options.temperature, defaults.greedy ? std::optional<float>(0) : defaults.temperature);
  pick(params.top_p, options.top_p, defaults.top_p);
  pick(params.top_k, options.top_k, defaults.top_k);
  pick(params.min_p, options.min_p, defaults.min_p);
  pick(params.repetition_penalty, options.repetition_penalty, defaults.repetition_penalty);
  params.frequency_penalty = options.frequency_penalty;
  params.presence_penalty = options.presence_penalty;
  params.max_tokens = options.max_tokens;
  params.min_tokens = options.min_tokens;
  params.seed = options.seed;
  params.stop = options.stop;
  if (!options.ignore_eos) params.stop_token_ids = base.eos;
  for (const int32_t id : options.stop_token_ids)
    if (std::ranges::count(params.stop_token_ids, id) == 0) params.stop_token_ids.push_back(id);
  rollout::validate(params);
  return params;
}

}  // namespace lockstep::recipes
