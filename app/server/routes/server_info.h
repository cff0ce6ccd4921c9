// GET /server_info and /get_world_size: what trainers ask before they choose how to bring weights here.
#pragma once

#include "server/http/http.h"
#include "server/routes/route.h"

namespace lockstep::server {

struct Service;

// vLLM's `vllm_config`, as far as trainers read it, and SGLang's keys beside it: both ask the same path.
Reading handle_server_info(Service& service, const HttpRequest& request);
Reading handle_world_size(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
