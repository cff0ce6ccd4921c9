// What launch commands of `vllm serve` and SGLang's server pass besides.
#include "cli/known.h"

namespace lockstep::cli {

namespace {

using enum Arity;

constexpr std::string_view kAlways = "adapters can always be loaded while the server runs (--max-loras)";
constexpr std::string_view kOneMachine = "one process serves on this machine's cores or GPU (--threads, --device)";
constexpr std::string_view kMemory = "the KV cache is bounded by --kv-cache-bytes";
constexpr std::string_view kSetting = "there is no such stage in this engine";
constexpr std::string_view kLog = "one line per request with --log-requests; metrics are always at /metrics";

constexpr Compatible kServe[] = {
    {"--enable-lora", none, kAlways},
    {"--max-cpu-loras", one, "loaded adapters stay in memory until they are unloaded (--max-loras)"},
    {"--fully-sharded-loras", none, kOneMachine},
    {"--enable-prefix-caching", none, "the prefix cache is on (--no-enable-prefix-caching turns it off)"},
    {"--enable-chunked-prefill", none, "prompts longer than --max-num-batched-tokens are always computed in chunks"},
    {"--tensor-parallel-size", one, kOneMachine, "1", {}, Effect::layout},
    {"--pipeline-parallel-size", one, kOneMachine, "1", {}, Effect::layout},
    {"--data-parallel-size", one, kOneMachine, "1", {}, Effect::layout},
    {"--gpu-memory-utilization", one, kMemory},
    {"--swap-space", one, kMemory},
    {"--block-size", one, kMemory},
    {"--enforce-eager", none, kSetting},
    {"--trust-remote-code", none, "no code of a model directory is run"},
    {"--disable-log-requests", none, kLog},
    {"--enable-log-requests", none, kLog},
    {"--disable-log-stats", none, kLog},
    {"--disable-uvicorn-access-log", none, kLog},
    {"--uvicorn-log-level", one, kLog},
    {"--enable-metrics", none, kLog},
    {"--enable-server-load-tracking", none, kLog},
    {"--compilation-config", many, kSetting},
    {"--attention-backend", one, kSetting},
};

}  // namespace

std::span<const Compatible> serve_compatible_flags() {
  return kServe;
}

}  // namespace lockstep::cli
