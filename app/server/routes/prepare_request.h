// Turns the fields that all generating routes share, and the prompts, into the request that the engine gets.
#pragma once

#include <optional>
#include <string>

#include "server/protocol/common_fields.h"
#include "server/routes/answer.h"

namespace lockstep::server {

// How many tokens each prompt may get: what is asked for, or what is left of the context (at most `usual`).
struct TokenLimit {
  std::optional<int64_t> asked;
  std::optional<int64_t> usual = {};
};

// Checks and joins them. The answer's id begins with `prefix`; behind it comes `given_id` (of X-Request-Id;
// empty: there is none), else the body's request_id, else a random one. ApiError 400: an empty prompt, a token outside
// the vocabulary, prompt and max_tokens beyond the context, min_tokens above max_tokens, more log-probs than an answer
// may hold; 404: no such model.
PreparedRequest prepare_request(Service& service, const CommonFields& common, std::vector<PromptInput> prompts,
                                TokenLimit limit, std::string_view given_id, std::string_view prefix);

std::string_view given_id(const HttpRequest& request);

}  // namespace lockstep::server
