// The body of POST /v1/completions.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "server/protocol/common_fields.h"

namespace lockstep::server {

struct CompletionRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  std::vector<Prompt> prompts;
  bool add_special_tokens = true;
  int64_t max_tokens = 16;  // 0: returns only the prompt (echo)
  CommonFields common;
};

// ApiError 400.
CompletionRequest parse_completion(const OrderedJson& body, const SamplingRules& rules, bool tokens_as_ids);

}  // namespace lockstep::server
