// Routes that steer the engine, of SGLang and of vLLM, and those that say how it is. What waits for a step of the
// engine runs on a worker.
#pragma once

#include <memory>

#include "server/http.h"

namespace lockstep::server {

struct Service;
using Reply = std::shared_ptr<Responder>;

// SGLang.
void handle_flush_cache(Service& service, const HttpRequest& request, Reply reply);
void handle_pause_generation(Service& service, const HttpRequest& request, Reply reply);
void handle_continue_generation(Service& service, const HttpRequest& request, Reply reply);
void handle_abort_request(Service& service, const HttpRequest& request, Reply reply);
void handle_model_info(Service& service, const HttpRequest& request, Reply reply);
void handle_health_generate(Service& service, const HttpRequest& request, Reply reply);  // one token of the base

// vLLM.
void handle_pause(Service& service, const HttpRequest& request, Reply reply);
void handle_resume(Service& service, const HttpRequest& request, Reply reply);
void handle_is_paused(Service& service, const HttpRequest& request, Reply reply);
void handle_reset_prefix_cache(Service& service, const HttpRequest& request, Reply reply);
void handle_abort_requests(Service& service, const HttpRequest& request, Reply reply);

// 200, or 503 once the engine has failed and while `draining`.
void handle_health(Service& service, bool draining, Reply reply);

}  // namespace lockstep::server
