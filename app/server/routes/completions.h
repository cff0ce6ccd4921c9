// POST /v1/completions, as vLLM and OpenAI.
#pragma once

#include "server/routes/route.h"

namespace lockstep::server {

// Throws ApiError; its action, what Serving::submit throws.
Reading handle_completions(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
