// Tokens in, tokens out: POST /tokenize, /detokenize and /inference/v1/generate, as vLLM.
#pragma once

#include <optional>
#include <vector>

#include "server/plan.h"
#include "server/route.h"

namespace lockstep::server {

struct TokensRequest {
  std::vector<int32_t> tokens;
  std::optional<int64_t> max_tokens;  // default: what is left of the context
  CommonFields common;
};

// ApiError 400.
TokensRequest parse_tokens(const OrderedJson& body, const SamplingRules& rules);

// Throw ApiError; the action of the first, what Serving::submit throws.
Reading handle_tokens_generate(Service& service, const HttpRequest& request);
Reading handle_tokenize(Service& service, const HttpRequest& request);
Reading handle_detokenize(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
