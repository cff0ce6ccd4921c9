// Tokens in, tokens out: POST /tokenize, /detokenize and /inference/v1/generate, as vLLM.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/http.h"
#include "server/plan.h"

namespace lockstep::server {

struct TokensRequest {
  std::vector<int32_t> tokens;
  std::optional<int64_t> max_tokens;  // default: what is left of the context
  CommonFields common;
};

// ApiError 400.
TokensRequest parse_tokens(const OrderedJson& body, const SamplingRules& rules);

// Throw ApiError and what Serving::submit throws.
void handle_tokens_generate(Service& service, const HttpRequest& request, std::shared_ptr<Responder> responder);
void handle_tokenize(Service& service, const HttpRequest& request, std::shared_ptr<Responder> responder);
void handle_detokenize(Service& service, const HttpRequest& request, std::shared_ptr<Responder> responder);

}  // namespace lockstep::server
