// What the routes that load an adapter read.
#pragma once

#include "server/protocol/fields.h"
#include "service/adapter_registry.h"

namespace lockstep::server {

// {"lora_name", "lora_path", "load_inplace"}, and Lockstep's "sha256" and "adapter_version". ApiError 400.
service::AdapterSource parse_load(const OrderedJson& body);

}  // namespace lockstep::server
