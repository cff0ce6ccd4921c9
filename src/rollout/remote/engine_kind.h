// Which servers generate rollouts, and how versions of the adapter reach them.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::rollout {

enum class EngineKind { vllm, sglang, lockstep };

// What is known of a kind of server before one is asked.
struct EngineFacts {
  EngineKind kind = EngineKind::vllm;
  const char* name = "";                     // as --rollout-engine has it, and its flags in scripts ("--vllm-...")
  bool takes_tensors = false;                // adapters in a request (Delivery)
  bool takes_weights = false;                // merged weights in place of its base
  const char* one_replica = "";              // the server's own flags, for errors: one replica,
  const char* max_adapters = "--max-loras";  // how many adapters it holds at once,
  int64_t adapters_of_base = 0;              // of which the base counts as so many
};
inline constexpr EngineFacts kEngines[] = {
    {.kind = EngineKind::vllm, .name = "vllm", .takes_weights = true, .one_replica = "--data-parallel-size 1"},
    {.kind = EngineKind::sglang,
     .name = "sglang",
     .takes_tensors = true,
     .takes_weights = true,
     .one_replica = "--dp-size 1",
     .max_adapters = "--max-loras-per-batch",
     .adapters_of_base = 1},
    {.kind = EngineKind::lockstep, .name = "lockstep", .one_replica = "--data-parallel-size 1"}};
const EngineFacts& engine_facts(EngineKind kind);
const char* engine_name(EngineKind kind);
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
