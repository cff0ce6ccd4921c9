// Whose servers generate, and how they get versions.
#pragma once

#include <string>

namespace lockstep::rollout {

enum class EngineKind { vllm, sglang, lockstep };
const char* engine_name(EngineKind kind);               // "vllm", "sglang", "lockstep"
EngineKind parse_engine_kind(const std::string& name);  // ConfigError

// How servers get a version: as a PEFT directory, as the tensors of one in a request, or as a model's directory, whose
// weights take the place of what they had.
enum class Delivery { adapter_files, adapter_tensors, weight_files };

// What becomes of samples in flight when weights take the place of those that they began with: they end where they are;
// they go on with the new ones, and count as of the version that they were asked of; or they are drawn again. Adapters
// have names, and a sample goes on with the one that it began with.
enum class OnVersionChange { cut, keep, drop };

}  // namespace lockstep::rollout
