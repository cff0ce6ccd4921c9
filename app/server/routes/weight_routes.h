// Routes that bring base weights, give memory back and say what is there: vLLM's development routes, SGLang's, AReaL's.
// They exist with ServiceOptions::weight_updates only. What takes time runs on a worker.
#pragma once

#include "server/routes/route.h"

namespace lockstep::server {

// vLLM.
Reading handle_sleep(Service& service, const HttpRequest& request);
Reading handle_wake_up(Service& service, const HttpRequest& request);
Reading handle_is_sleeping(Service& service, const HttpRequest& request);
Reading handle_release_kv_cache(Service& service, const HttpRequest& request);
Reading handle_collective_rpc(Service& service, const HttpRequest& request);
Reading handle_weight_info(Service& service, const HttpRequest& request);
Reading handle_vllm_weight_checker(Service& service, const HttpRequest& request);

// SGLang.
Reading handle_update_from_disk(Service& service, const HttpRequest& request);
Reading handle_update_from_tensor(Service& service, HttpRequest&& request);
Reading handle_update_weight_version(Service& service, const HttpRequest& request);
Reading handle_get_weights(Service& service, const HttpRequest& request);
Reading handle_weights_checker(Service& service, const HttpRequest& request);
Reading handle_release_memory(Service& service, const HttpRequest& request);
Reading handle_resume_memory(Service& service, const HttpRequest& request);

// What needs a collective transfer: 501, once the body has been checked.
Reading handle_transfer(Service& service, const HttpRequest& request);
Reading handle_weight_meta(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
