// POST /v1/chat/completions, as vLLM and OpenAI. Calls of tools stay in the text, as the model wrote them.
#pragma once

#include <optional>
#include <string>

#include "server/chat_input.h"
#include "server/plan.h"
#include "server/route.h"

namespace lockstep::server {

struct ChatRequest {
  ChatFields chat;
  std::optional<int64_t> max_tokens;  // default: what is left of the context
  CommonFields common;
};

// `kwargs`: variables of the template that hold unless the request says otherwise. ApiError 400.
ChatRequest parse_chat(const OrderedJson& body, const SamplingRules& rules, bool tokens_as_ids,
                       const OrderedJson& kwargs = nullptr);

// The prompt of a conversation. ApiError 400: no template, what it refuses, or rendering takes more than
// ServiceOptions::render_timeout. Who brings a template of their own may make it take that long.
PromptInput chat_prompt(const Service& service, const ChatFields& chat);
bool brings_template(const Service& service, const ChatFields& chat);  // that is rendered

// Throws ApiError; its action, what Serving::submit throws.
Reading handle_chat_completions(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
