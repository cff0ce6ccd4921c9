// GET /v1/models: the base by each of its names, then the adapters.
#pragma once

#include <string>

namespace lockstep::server {

struct Service;

// vLLM's cards. An adapter's also has "adapter_version", "adapter_versions" and "rank".
std::string models_json(const Service& service);

}  // namespace lockstep::server
