// POST /v1/completions, as vLLM and OpenAI.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/plan.h"
#include "server/route.h"

namespace lockstep::server {

struct CompletionRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  std::vector<Prompt> prompts;
  bool add_special_tokens = true;
  int64_t max_tokens = 16;  // 0: only the prompt is told (echo)
  CommonFields common;
};

// ApiError 400.
CompletionRequest parse_completion(const OrderedJson& body, const SamplingRules& rules, bool tokens_as_ids);

// Throws ApiError; its action, what Serving::submit throws.
Reading handle_completions(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
