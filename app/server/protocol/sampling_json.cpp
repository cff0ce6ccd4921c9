#include "server/protocol/sampling_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "server/protocol/api_error.h"

namespace lockstep::server {

namespace {

constexpr double kMax = std::numeric_limits<float>::max();
constexpr double kAboveZero = std::numeric_limits<float>::denorm_min();

float pick(std::optional<double> given, std::optional<float> usual, float fallback) {
  return given ? static_cast<float>(*given) : usual.value_or(fallback);
}

void read_shape(const Fields& fields, const SamplingRules& rules, SamplingFields& sampling) {
  constexpr int64_t kMaxSamples = 16384;
  constexpr float kMinTemperature = 0.01f;
  const recipes::SamplingDefaults& usual = rules.defaults;
  rollout::SamplingParams& params = sampling.params;
  params.temperature = pick(fields.number("temperature", 0, 2, "in [0, 2]"), usual.temperature, 1);
  params.top_p = pick(fields.number("top_p", kAboveZero, 1, "in (0, 1]"), usual.top_p, 1);
  params.min_p = pick(fields.number("min_p", 0, 1, "in [0, 1]"), usual.min_p, 0);
  params.top_k = fields.integer("top_k", -1, kMaxTokens).value_or(usual.top_k.value_or(0));
  sampling.n = fields.integer("n", 1, kMaxSamples).value_or(1);
  if (params.temperature > 0) {
    params.temperature = std::max(params.temperature, kMinTemperature);
    return;
  }
  if (sampling.n > 1)
    throw bad_request(fmt::format("n must be 1 when using greedy sampling, got {}.", sampling.n), "n");
  params.top_p = 1;
  params.top_k = 0;
  params.min_p = 0;
}

void read_penalties(const Fields& fields, const SamplingRules& rules, rollout::SamplingParams& params) {
  params.presence_penalty = pick(fields.number("presence_penalty", -2, 2, "in [-2, 2]"), {}, 0);
  params.frequency_penalty = pick(fields.number("frequency_penalty", -2, 2, "in [-2, 2]"), {}, 0);
  params.repetition_penalty = pick(fields.number("repetition_penalty", kAboveZero, kMax, "greater than zero"),
                                   rules.defaults.repetition_penalty, 1);
}

// Every prompt, or every sample, has a copy.
constexpr size_t kMaxIds = 16384, kMaxStopBytes = 1024;

void check_size(size_t size, size_t most, const std::string& name, std::string_view of) {
  if (size > most)
    throw bad_request(fmt::format("`{}` has {} {}, at most {} are allowed.", name, size, of, most), name);
}

int32_t bias_id(const std::string& key, const SamplingRules& rules) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size())
    throw bad_request(fmt::format("logit_bias has a key that is no token id: {}.", key), "logit_bias");
  if (id < 0 || id >= rules.vocab_size)
    throw bad_request(fmt::format("logit_bias holds id {}, outside the vocabulary of {} tokens.", id, rules.vocab_size),
                      "logit_bias");
  return static_cast<int32_t>(id);
}

void read_logit_bias(const Fields& fields, const SamplingRules& rules, rollout::SamplingParams& params) {
  constexpr double kMaxBias = 100;
  const OrderedJson* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) fields.wrong("logit_bias", *bias, "an object of token id to number");
  check_size(bias->size(), kMaxIds, "logit_bias", "entries");
  for (const auto& [key, value] : bias->items()) {
    if (!value.is_number()) fields.wrong("logit_bias", value, "an object of token id to number");
    params.logit_bias.emplace_back(bias_id(key, rules),
                                   static_cast<float>(std::clamp(value.get<double>(), -kMaxBias, kMaxBias)));
  }
}

void read_stops(const Fields& fields, const SamplingRules& rules, rollout::SamplingParams& params) {
  constexpr size_t kMaxStops = 4;
  params.stop = fields.strings("stop").value_or(std::vector<std::string>{});
  if (params.stop.size() > kMaxStops)
    throw bad_request(fmt::format("stop holds {} strings, at most {} are allowed.", params.stop.size(), kMaxStops),
                      "stop");
  for (const std::string& stop : params.stop) {
    if (stop.empty()) throw bad_request("stop cannot contain an empty string.", "stop");
    check_size(stop.size(), kMaxStopBytes, "stop", "bytes in a string");
  }
  params.stop_token_ids = fields.ids("stop_token_ids").value_or(std::vector<int32_t>{});
  check_size(params.stop_token_ids.size(), kMaxIds, "stop_token_ids", "ids");
  check_vocabulary(params.stop_token_ids, rules, "stop_token_ids");
  if (fields.flag("ignore_eos")) return;
  for (const int32_t id : rules.end_tokens)
    if (std::ranges::count(params.stop_token_ids, id) == 0) params.stop_token_ids.push_back(id);
}

void read_counter(const Fields& fields, SamplingFields& sampling) {
  constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();
  sampling.rollout = static_cast<uint32_t>(fields.integer("rollout", 0, kMax).value_or(0));
  sampling.row = static_cast<uint32_t>(fields.integer("row", 0, kMax).value_or(0));
  sampling.first_sample = fields.integer("first_sample", 0, kMax).value_or(0);
}

// Fields that would change the answer, with the value that does not (besides null and what is empty).
struct Unsupported {
  std::string_view name, neutral;
};
constexpr Unsupported kUnsupported[] = {{"suffix", "\"\""},
                                        {"use_beam_search", "false"},
                                        {"best_of", "1"},
                                        {"allowed_token_ids", "[]"},
                                        {"bad_words", "[]"},
                                        {"prompt_embeds", "[]"},
                                        {"logprob_token_ids", "[]"},
                                        {"truncate_prompt_tokens", ""},
                                        {"response_format", "{\"type\":\"text\"}"},
                                        {"structured_outputs", ""},
                                        {"guided_json", ""},
                                        {"guided_regex", ""},
                                        {"guided_choice", ""},
                                        {"guided_grammar", ""},
                                        {"repetition_detection", ""},
                                        {"thinking_token_budget", "-1"},
                                        {"watermarking", "false"},
                                        {"priority", "0"},
                                        {"logits_processors", "[]"},
                                        {"vllm_xargs", "{}"},
                                        {"return_token_offsets", "false"},
                                        {"return_assistant_tokens_mask", "false"},
                                        {"kv_transfer_params", "{}"},
                                        {"ec_transfer_params", "{}"}};

}  // namespace

std::optional<int64_t> read_top_logprobs(const Fields& fields, std::string_view name, const SamplingRules& rules) {
  const std::optional<int64_t> count = fields.integer(name);
  if (!count) return std::nullopt;
  if (*count < -1) throw bad_request(fmt::format("`{}` must be a positive value or -1.", name), fields.full_name(name));
  const int64_t most = rules.max_logprobs < 0 ? std::min(rollout::SamplingParams::kMaxTopLogprobs, rules.vocab_size)
                                              : rules.max_logprobs;
  const int64_t asked = *count == -1 ? rules.vocab_size : *count;
  if (asked > most)
    throw bad_request(fmt::format("`{}` asks for {} log-probabilities, at most {} are allowed (`--max-logprobs`).",
                                  name, asked, most),
                      fields.full_name(name));
  return asked;
}

void check_vocabulary(std::span<const int32_t> ids, const SamplingRules& rules, std::string_view name) {
  for (const int32_t id : ids)
    if (id < 0 || id >= rules.vocab_size)
      throw bad_request(
          fmt::format("Token id {} is out of vocabulary: `{}` may hold 0 to {}.", id, name, rules.vocab_size - 1),
          std::string(name));
}

void check_min_tokens(const rollout::SamplingParams& params) {
  if (params.min_tokens > params.max_tokens)
    throw bad_request(
        fmt::format("min_tokens must be at most max_tokens={}, got {}.", params.max_tokens, params.min_tokens),
        "min_tokens");
}

SamplingFields read_sampling(const Fields& fields, const SamplingRules& rules) {
  SamplingFields sampling;
  sampling.params.temperature = 1;
  read_shape(fields, rules, sampling);
  read_penalties(fields, rules, sampling.params);
  read_logit_bias(fields, rules, sampling.params);
  read_stops(fields, rules, sampling.params);
  if (const auto seed = fields.integer("seed"); seed && *seed != -1) {
    sampling.params.seed = static_cast<uint64_t>(*seed);
    sampling.seeded = true;
  }
  constexpr double kMaxTemperature = 100;
  sampling.params.logprob_temperature =
      pick(fields.number("logprob_temperature", kAboveZero, kMaxTemperature, "above 0 and at most 100"), {},
           rules.processed_logprobs && sampling.params.temperature > 0 ? sampling.params.temperature : 1);
  read_counter(fields, sampling);
  sampling.params.min_tokens = fields.integer("min_tokens", 0, kMaxTokens).value_or(0);
  sampling.prompt_logprobs = read_top_logprobs(fields, "prompt_logprobs", rules);
  return sampling;
}

void refuse_unsupported(const Fields& fields) {
  for (const auto& [name, neutral] : kUnsupported) {
    const OrderedJson* value = fields.find(name);
    if (value == nullptr || (!neutral.empty() && *value == OrderedJson::parse(neutral))) continue;
    throw bad_request(fmt::format("`{}` is not supported by this server.", fields.full_name(name)),
                      fields.full_name(name));
  }
}

}  // namespace lockstep::server
