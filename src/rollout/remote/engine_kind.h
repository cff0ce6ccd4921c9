// Whose servers generate.
#pragma once

#include <string>

namespace lockstep::rollout {

enum class EngineKind { vllm, sglang, lockstep };
const char* engine_name(EngineKind kind);               // "vllm", "sglang", "lockstep"
EngineKind parse_engine_kind(const std::string& name);  // ConfigError

}  // namespace lockstep::rollout
