// Routes that steer the engine, of SGLang and of vLLM, and those that say how it is. What waits for a step of the
// engine runs on a worker.
#pragma once

#include "server/routes/route.h"

namespace lockstep::server {

// SGLang.
Reading handle_flush_cache(Service& service, const HttpRequest& request);
Reading handle_pause_generation(Service& service, const HttpRequest& request);
Reading handle_continue_generation(Service& service, const HttpRequest& request);
Reading handle_abort_request(Service& service, const HttpRequest& request);
Reading handle_model_info(Service& service, const HttpRequest& request);
Reading handle_health_generate(Service& service, const HttpRequest& request);  // one token of the base

// vLLM.
Reading handle_pause(Service& service, const HttpRequest& request);
Reading handle_resume(Service& service, const HttpRequest& request);
Reading handle_is_paused(Service& service, const HttpRequest& request);
Reading handle_reset_prefix_cache(Service& service, const HttpRequest& request);
Reading handle_abort_requests(Service& service, const HttpRequest& request);

// 200, or 503 once the GPU is lost and while `draining`.
void send_health(const Service& service, bool draining, const Reply& reply);

}  // namespace lockstep::server
