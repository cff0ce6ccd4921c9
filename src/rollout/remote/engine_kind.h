// Which servers generate rollouts, and how versions of the adapter reach them.
#pragma once

#include <string>

namespace lockstep::rollout {

enum class EngineKind { vllm, sglang, lockstep };
const char* engine_name(EngineKind kind);               // "vllm", "sglang", "lockstep"
EngineKind parse_engine_kind(const std::string& name);  // ConfigError

// How a version reaches the servers: as a PEFT directory; as the tensors of one, in a request; or merged into the base,
// as a model's directory whose weights replace the server's.
enum class Delivery { adapter_files, adapter_tensors, weight_files };

// With weight_files: what happens to samples in flight when the weights are replaced. cut: they end where they are;
// keep: they continue with the new weights, and count as samples of the version they were requested from; drop: they
// are sampled again. With adapters a sample always continues with the one that it began with, because adapters have
// names.
enum class OnVersionChange { cut, keep, drop };

}  // namespace lockstep::rollout
