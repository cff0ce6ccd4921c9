#include "rollout/local/request_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/attention.h"

namespace lockstep::rollout {
namespace {

void check_sampling(const SampleRequest& request, int64_t vocab, bool has_tokenizer) {
  validate(request.sampling);
  if (request.n < 1)
    throw ConfigError({.what = "impossible number of samples",
                       .where = "n",
                       .got = std::to_string(request.n),
                       .wanted = "at least 1"});
  if (!request.sampling.stop.empty() && !has_tokenizer)
    throw ConfigError({.what = "stop strings need a tokenizer", .where = "stop", .attempt = "stop_token_ids"});
  constexpr int64_t kSampleNumbers = int64_t{1} << 32;
  if (request.first_sample < 0 || request.first_sample > kSampleNumbers - request.n)
    throw ConfigError({.what = "a sample number does not fit the counter",
                       .where = request.where,
                       .got = fmt::format("{} samples from {} on", request.n, request.first_sample),
                       .wanted = "numbers of 32 bits"});
  const auto check_token = [&](int32_t token, const char* field) {
    if (token < 0 || token >= vocab)
      throw ConfigError({.what = "token outside the vocabulary",
                         .where = field,
                         .got = std::to_string(token),
                         .wanted = fmt::format("0 .. {}", vocab - 1)});
  };
  for (const auto& [token, bias] : request.sampling.logit_bias) check_token(token, "logit_bias");
  if (request.sampling.min_tokens > 0)
    for (const int32_t token : request.sampling.stop_token_ids) check_token(token, "stop_token_ids");
  for (const int32_t token : request.prompt_candidates) check_token(token, "prompt_candidates");
  if (!request.prompt_candidates.empty() && !request.prompt_logprobs)
    throw ConfigError({.what = "log-probs of tokens are given at the prompt's places, which were not asked for",
                       .where = "prompt_candidates",
                       .wanted = "prompt_logprobs with them"});
  if (request.prompt_logprobs &&
      (*request.prompt_logprobs < 0 || *request.prompt_logprobs > SamplingParams::kMaxTopLogprobs))
    throw ConfigError({.what = "impossible number of most likely tokens",
                       .where = "prompt_logprobs",
                       .got = std::to_string(*request.prompt_logprobs),
                       .wanted = fmt::format("0 to {}", SamplingParams::kMaxTopLogprobs)});
}

}  // namespace

// The last token's keys and values are never needed.
int64_t longest_sequence(const model::ModelSpec& config, const BlockPool& pool) {
  return std::min(config.max_positions, pool.capacity() * kernels::kKvBlock + 1);
}

int64_t check_request(const SampleRequest& request, const model::ModelSpec& config, const BlockPool& pool,
                      bool has_tokenizer) {
  check_sampling(request, config.vocab_size, has_tokenizer);
  const auto size = static_cast<int64_t>(request.tokens.size());
  if (size == 0) throw DataError({.what = "empty prompt", .where = request.where, .wanted = "at least one token"});
  const int64_t asked = request.sampling.max_context;
  const int64_t context = asked > 0 ? std::min(asked, config.max_positions) : config.max_positions;
  if (size >= context)
    throw DataError({.what = "prompt leaves no room for an answer",
                     .where = request.where,
                     .got = fmt::format("{} tokens", size),
                     .wanted = fmt::format("fewer than the context of {}", context)});
  for (const int32_t token : request.tokens)
    if (token < 0 || token >= config.vocab_size)
      throw DataError({.what = "token outside the vocabulary",
                       .where = request.where,
                       .got = std::to_string(token),
                       .wanted = fmt::format("0 .. {}", config.vocab_size - 1)});
  const int64_t max_tokens = std::min(request.sampling.max_tokens, context - size);
  if (size + max_tokens > longest_sequence(config, pool)) {
    const int64_t blocks = (size + max_tokens - 1 + kernels::kKvBlock - 1) / kernels::kKvBlock;
    throw ResourceError(
        {.what = "one sequence does not fit the KV pool",
         .where = request.where,
         .got = fmt::format("{} prompt + {} new tokens = {} bytes", size, max_tokens, blocks * pool.block_bytes()),
         .wanted = fmt::format("at most {} bytes", pool.capacity() * pool.block_bytes()),
         .attempt = "fewer new tokens, or a larger KV pool"});
  }
  return max_tokens;
}

}  // namespace lockstep::rollout
