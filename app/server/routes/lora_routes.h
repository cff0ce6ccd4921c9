// Adapters by name: vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter, SGLang's /load_lora_adapter and
// /unload_lora_adapter. Files are read on a worker; the answer comes when the adapter serves.
#pragma once

#include "server/routes/route.h"

namespace lockstep::server {

// SGLang's /load_lora_adapter_from_tensors: the tensors are in the body.
Reading handle_tensor_load(Service& service, HttpRequest&& request);

// Throw ApiError for a body they cannot read.
Reading handle_vllm_load(Service& service, const HttpRequest& request);
Reading handle_vllm_unload(Service& service, const HttpRequest& request);
Reading handle_sglang_load(Service& service, const HttpRequest& request);
// Answers when no request in flight uses the adapter.
Reading handle_sglang_unload(Service& service, const HttpRequest& request);

}  // namespace lockstep::server
