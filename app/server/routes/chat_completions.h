// POST /v1/chat/completions, as vLLM and OpenAI. Calls of tools stay in the text, as the model wrote them.
#pragma once

#include "server/protocol/chat_input.h"
#include "server/routes/prepare_request.h"
#include "server/routes/route.h"

namespace lockstep::server {

// The prompt of a conversation. ApiError 400: no template, what it refuses, or rendering takes more than
// ServiceOptions::render_timeout. Who brings a template of their own may make it take that long.
PromptInput chat_prompt(const Service& service, const ChatFields& chat);
bool brings_template(const Service& service, const ChatFields& chat);  // that is rendered

// Throws ApiError; its action, what Serving::submit throws.
Reading handle_chat_completions(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
