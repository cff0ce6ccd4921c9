// POST /generate, as SGLang. Log-probabilities are after the temperature, as there.
#pragma once

#include "server/routes/route.h"

namespace lockstep::server {

// Throws ApiError; its action, what Serving::submit throws.
Reading handle_sglang_generate(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
