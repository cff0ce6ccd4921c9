// Tokens in, tokens out: POST /tokenize, /detokenize and /inference/v1/generate, as vLLM.
#pragma once

#include "server/routes/route.h"

namespace lockstep::server {

// Throw ApiError; the action of the first, what Serving::submit throws.
Reading handle_tokens_generate(Service& service, const HttpRequest& request);
Reading handle_tokenize(Service& service, const HttpRequest& request);
Reading handle_detokenize(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
