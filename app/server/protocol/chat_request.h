// The body of POST /v1/chat/completions.
#pragma once

#include <cstdint>
#include <optional>

#include "server/protocol/chat_input.h"
#include "server/protocol/common_fields.h"

namespace lockstep::server {

struct ChatRequest {
  ChatFields chat;
  std::optional<int64_t> max_tokens;  // default: the rest of the context
  CommonFields common;
};

// `kwargs`: variables for the template, unless the request sets them. ApiError 400.
ChatRequest parse_chat(const OrderedJson& body, const SamplingRules& rules, bool tokens_as_ids,
                       const OrderedJson& kwargs = nullptr);

}  // namespace lockstep::server
