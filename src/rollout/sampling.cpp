#include "rollout/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace lockstep::rollout {
namespace {

// The exponent of logits / temperature must stay a number.
constexpr float kMinTemperature = 1e-5f, kMaxTemperature = 1e5f;
constexpr float kMinPenalty = 1e-5f, kMaxPenalty = 1e5f;  // logits / penalty must stay numbers too

void require(bool ok, const char* field, const std::string& got, const char* wanted) {
  if (!ok) throw ConfigError({.what = "impossible sampling parameter", .where = field, .got = got, .wanted = wanted});
}

bool is_temperature(float t) {
  return t >= kMinTemperature && t <= kMaxTemperature;
}

}  // namespace

void validate(const SamplingParams& params) {
  const auto text = [](auto value) { return fmt::format("{}", value); };
  require(params.temperature == 0 || is_temperature(params.temperature), "temperature", text(params.temperature),
          "0 (greedy), or 1e-5 to 1e5");
  require(params.top_p > 0 && params.top_p <= 1, "top_p", text(params.top_p), "above 0, at most 1");
  require(params.top_k >= -1, "top_k", text(params.top_k), "-1 or 0 (all), or a count");
  require(params.min_p >= 0 && params.min_p <= 1, "min_p", text(params.min_p), "0 to 1");
  require(params.max_context >= 0, "max_context", text(params.max_context), "at least 0");
  require(params.max_tokens >= 1, "max_tokens", text(params.max_tokens), "at least 1");
  require(is_temperature(params.logprob_temperature), "logprob_temperature", text(params.logprob_temperature),
          "1e-5 to 1e5");
  require(params.repetition_penalty >= kMinPenalty && params.repetition_penalty <= kMaxPenalty, "repetition_penalty",
          text(params.repetition_penalty), "1e-5 to 1e5");
  require(std::abs(params.frequency_penalty) <= kMaxPenalty, "frequency_penalty", text(params.frequency_penalty),
          "-1e5 to 1e5");
  require(std::abs(params.presence_penalty) <= kMaxPenalty, "presence_penalty", text(params.presence_penalty),
          "-1e5 to 1e5");
  for (const auto& [token, bias] : params.logit_bias)
    require(!std::isnan(bias) && bias <= kMaxPenalty, "logit_bias", fmt::format("{} for token {}", bias, token),
            "a number");
  require(params.min_tokens >= 0 && params.min_tokens <= params.max_tokens, "min_tokens", text(params.min_tokens),
          "0 to max_tokens");
  require(params.top_logprobs >= 0 && params.top_logprobs <= SamplingParams::kMaxTopLogprobs, "top_logprobs",
          text(params.top_logprobs), "0 to 128");
  for (const std::string& stop : params.stop) require(!stop.empty(), "stop", "an empty string", "text to stop at");
}

bool SamplingParams::changes_logits() const {
  return !logit_bias.empty() || repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0 ||
         min_tokens > 0;
}

kernels::SampleRow sample_row(const SamplingParams& params, const Counter& counter) {
  constexpr int64_t kMaxK = std::numeric_limits<int32_t>::max();
  return {.seed = params.seed,
          .counter = counter,
          .temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = static_cast<int32_t>(std::clamp<int64_t>(params.top_k, 0, kMaxK))};
}

}  // namespace lockstep::rollout
