// POST /v1/chat/completions, as vLLM and OpenAI. Calls of tools stay in the text, as the model wrote them.
#pragma once

#include "server/protocol/chat_input.h"
#include "server/routes/prepare_request.h"
#include "server/routes/route.h"

namespace lockstep::server {

// Renders the conversation with the chat template. ApiError 400: there is no template, the template raises an error, or
// rendering takes longer than ServiceOptions::render_timeout. A template that a request brings can take that long on
// purpose, so it is rendered on another thread (brings_template).
PromptInput chat_prompt(const Service& service, const ChatFields& chat);
bool brings_template(const Service& service, const ChatFields& chat);  // that is rendered

// Throws ApiError; its action, what Serving::submit throws.
Reading handle_chat_completions(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
