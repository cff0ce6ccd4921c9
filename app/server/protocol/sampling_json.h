// How a request wants its tokens drawn: vLLM's fields, ranges and defaults, in OpenAI's routes and in
// /inference/v1/generate.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "recipes/sampling_defaults.h"
#include "rollout/sampling.h"
#include "server/protocol/fields.h"

namespace lockstep::server {

// What the served model and the command line say about it.
struct SamplingRules {
  recipes::SamplingDefaults defaults;  // of fields that are absent or null
  int64_t max_logprobs = 20;           // -1: as many as the engine reports
  bool processed_logprobs = false;     // log-probs are those of logits / temperature, unless a request says otherwise
  int64_t vocab_size = 0;
  std::vector<int32_t> end_tokens = {};  // the first is the tokenizer's own
};

struct SamplingFields {
  rollout::SamplingParams params;  // max_tokens is the caller's; stop_token_ids holds the end tokens unless ignored
  int64_t n = 1;
  bool seeded = false;                          // params.seed was given
  std::optional<int64_t> prompt_logprobs;       // top log-probs of the prompt's tokens
  std::vector<int32_t> prompt_candidates = {};  // SGLang's: whose log-probs are wanted beside those
  // Lockstep's: with the seed they say what is drawn (rollout/request.h), so that a server's samples are an engine's.
  uint32_t rollout = 0, row = 0;
  int64_t first_sample = 0;
};

// temperature, top_p, top_k, min_p, the three penalties, logit_bias, n, seed, stop, stop_token_ids, ignore_eos,
// min_tokens, prompt_logprobs; Lockstep's rollout, row, first_sample, logprob_temperature. ApiError 400 naming the
// field: another type, out of range, too long, greedy with n > 1.
SamplingFields read_sampling(const Fields& fields, const SamplingRules& rules);

// A count of top log-probs (prompt_logprobs, logprobs, top_logprobs); -1 stands for all, if there is no limit.
std::optional<int64_t> read_top_logprobs(const Fields& fields, std::string_view name, const SamplingRules& rules);

// ApiError 400 for an id outside the vocabulary.
void check_vocabulary(std::span<const int32_t> ids, const SamplingRules& rules, std::string_view name);
void check_min_tokens(const rollout::SamplingParams& params);  // ApiError 400: above max_tokens

// ApiError 400 naming the first field whose meaning this server does not have, unless its value changes nothing.
// Fields nobody knows are ignored.
void refuse_unsupported(const Fields& fields);

}  // namespace lockstep::server
