// What follows --vllm- and --sglang- in launch scripts: the arguments of vLLM's EngineArgs and SGLang's ServerArgs, and
// what vime, miles and slime add to them. What they claim about results is in claims.cpp, what is not built in
// later.cpp.
#include "cli/known.h"

namespace lockstep::cli {

namespace {

using enum Arity;

constexpr std::string_view kInProcess =
    "an engine setting: the engine lives in this process (--kv-cache-bytes, --max-num-seqs)";
constexpr Compatible kSetting = {"", many, kInProcess}, kSwitch = {"", none, kInProcess};

// Names are followed by a space each.
constexpr std::string_view kVllmSettings =
    "all2all-backend allowed-local-media-path api-key attention-backend block-size compilation-config "
    "cpu-offload-gb cuda-graph-sizes cudagraph-capture-sizes data-parallel-address data-parallel-backend "
    "data-parallel-rank data-parallel-rpc-port data-parallel-start-rank dbo-decode-token-threshold "
    "dbo-prefill-token-threshold distributed-executor-backend download-dir eplb-config expert-placement-strategy "
    "gpu-memory-utilization guided-decoding-backend hf-token host ignore-patterns kv-cache-memory-bytes "
    "kv-events-config kv-transfer-config limit-mm-per-prompt load-format long-prefill-token-threshold "
    "mamba-block-size mamba-cache-dtype mamba-ssm-cache-dtype max-cpu-loras max-cudagraph-capture-size "
    "max-log-len max-logprobs max-long-partial-prefills max-loras max-num-batched-tokens max-num-partial-prefills "
    "max-num-seqs max-parallel-loading-workers max-seq-len-to-capture media-io-kwargs mm-encoder-tp-mode "
    "mm-processor-cache-gb mm-processor-kwargs model-impl model-loader-extra-config node-rank "
    "num-gpu-blocks-override num-lookahead-slots num-redundant-experts num-scheduler-steps port preemption-mode "
    "prefix-caching-hash-algo pt-load-map-location reasoning-parser router-ip router-policy router-port "
    "router-request-timeout-secs safetensors-load-strategy scheduler-delay-factor scheduling-policy "
    "served-model-name server-concurrency speculative-config stream-interval structured-outputs-config swap-space "
    "tokenizer-mode tool-call-parser uvicorn-log-level weight-transfer-config ";
constexpr std::string_view kVllmSwitches =
    "async-scheduling calculate-kv-scales data-parallel-external-lb data-parallel-hybrid-lb "
    "disable-async-output-proc disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce "
    "disable-hybrid-kv-cache-manager disable-log-requests disable-log-stats disable-mm-preprocessor-cache "
    "disable-nccl-for-dp-synchronization enable-auto-tool-choice enable-chunked-prefill enable-dbo enable-eplb "
    "enable-expert-parallel enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details "
    "enable-return-routed-experts enable-sleep-mode enforce-eager fully-sharded-loras interleave-mm-strings "
    "multi-step-stream-outputs ray-workers-use-nsight skip-mm-profiling skip-tokenizer-init trust-remote-code "
    "use-tqdm-on-load ";
constexpr std::string_view kSglangSettings =
    "api-key attention-backend base-gpu-id chunked-prefill-size completion-template "
    "constrained-json-whitespace-pattern cpu-offload-gb crash-dump-folder cuda-graph-bs cuda-graph-max-bs "
    "decode-attention-backend decode-log-interval deepep-config deepep-mode disaggregation-bootstrap-port "
    "disaggregation-ib-device disaggregation-transfer-backend dist-init-addr dist-timeout download-dir "
    "ep-dispatch-algorithm ep-num-redundant-experts eplb-algorithm eplb-rebalance-num-iterations "
    "file-storage-path flashinfer-mxfp4-moe-precision fp8-gemm-backend gpu-id-step grammar-backend "
    "hicache-io-backend hicache-mem-layout hicache-ratio hicache-size hicache-storage-backend "
    "hicache-storage-prefetch-policy hicache-write-policy host hybrid-kvcache-ratio init-expert-location "
    "kv-events-config load-balance-method load-format log-level log-level-http lora-backend lora-eviction-policy "
    "mamba-full-memory-ratio mamba-scheduler-strategy mamba-ssm-dtype max-loaded-loras max-lora-chunk-size "
    "max-loras-per-batch max-mamba-cache-size max-micro-batch-size max-prefill-tokens max-queued-requests "
    "max-running-requests max-total-tokens mem-fraction-static mm-attention-backend model-impl "
    "model-loader-extra-config moe-a2a-backend moe-runner-backend nccl-port node-rank nsa-decode-backend "
    "nsa-prefill-backend num-continuous-decode-steps numa-node page-size port pp-max-micro-batch-size "
    "prefill-attention-backend reasoning-parser remote-instance-weight-loader-backend "
    "remote-instance-weight-loader-ib-device remote-instance-weight-loader-seed-instance-ip "
    "remote-instance-weight-loader-seed-instance-service-port "
    "remote-instance-weight-loader-send-weights-group-ports rl-on-policy-target router-ip router-policy "
    "router-port router-request-timeout-secs sampling-backend schedule-conservativeness schedule-policy "
    "scheduler-recv-interval served-model-name server-concurrency speculative-algorithm "
    "speculative-attention-mode speculative-draft-model-path speculative-draft-model-revision "
    "speculative-eagle-topk speculative-moe-runner-backend speculative-num-draft-tokens speculative-num-steps "
    "speculative-token-map stream-interval swa-full-tokens-ratio tbo-token-distribution-threshold tokenizer-mode "
    "tokenizer-worker-num tool-call-parser tool-server torch-compile-max-bs triton-attention-num-kv-splits "
    "triton-attention-split-tile-size warmups watchdog-timeout ";
constexpr std::string_view kSglangSwitches =
    "delete-ckpt-after-loading disable-chunked-prefix-cache disable-cuda-graph disable-cuda-graph-padding "
    "disable-custom-all-reduce disable-fast-image-processor disable-hybrid-swa-memory disable-outlines-disk-cache "
    "disable-overlap-schedule disable-radix-cache disable-shared-experts-fusion enable-cache-report "
    "enable-cudagraph-gc enable-custom-logit-processor enable-dp-attention enable-dp-lm-head enable-eplb "
    "enable-flashinfer-allreduce-fusion enable-hierarchical-cache enable-lmcache enable-memory-saver "
    "enable-mixed-chunk enable-mscclpp enable-multimodal enable-nan-detection enable-nccl-nvls enable-p2p-check "
    "enable-priority-scheduling enable-profile-cuda-graph enable-return-hidden-states "
    "enable-return-routed-experts enable-single-batch-overlap enable-symm-mem enable-tokenizer-batch-encode "
    "enable-torch-compile enable-two-batch-overlap enable-weights-cpu-backup flashinfer-mla-disable-ragged "
    "keep-mm-feature-on-device lora-use-virtual-experts "
    "remote-instance-weight-loader-start-seed-via-transfer-engine "
    "remote-instance-weight-loader-support-transfer-engine skip-server-warmup skip-tokenizer-init sleep-on-idle "
    "stream-output triton-attention-reduce-in-fp32 trust-remote-code weight-loader-disable-mmap ";

constexpr std::string_view kEngineLayout = "one process on one device (--device, --threads)";
constexpr std::string_view kEngineReports = "metrics go to <save>/metrics.jsonl and to the terminal";
constexpr std::string_view kQuantized = "weights are as the files have them";
constexpr std::string_view kMethods =
    "awq|awq_marlin|bitsandbytes|blockwise_int8|compressed-tensors|deepspeedfp|fbgemm_fp8|fp8|gguf|gptq|gptq_marlin|"
    "hqq|marlin|modelopt|modelopt_fp4|moe_wna16|mxfp4|petit_nvfp4|ptpc_fp8|qoq|quark|rtn|torchao|tpu_int8|w4afp8|"
    "w8a8_fp8|w8a8_int8";

constexpr Compatible kRows[] = {
    {"--vllm-tensor-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--vllm-pipeline-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--vllm-data-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--vllm-data-parallel-size-local", one, kEngineLayout, "1", {}, Effect::layout},
    {"--vllm-decode-context-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--vllm-prefill-context-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--vllm-nnodes", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-tensor-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-tp-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-pipeline-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-pp-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-data-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-dp-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-expert-parallel-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-ep-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-ep", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-moe-dense-tp-size", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-nnodes", one, kEngineLayout, "1", {}, Effect::layout},
    {"--sglang-disaggregation-mode", one, kEngineLayout, "null", "prefill|decode", Effect::layout},
    {"--vllm-otlp-traces-endpoint", one, kEngineReports, {}, {}, Effect::report},
    {"--vllm-collect-detailed-traces", many, kEngineReports, {}, {}, Effect::report},
    {"--vllm-enable-log-requests", none, kEngineReports, {}, {}, Effect::report},
    {"--vllm-show-hidden-metrics-for-version", one, kEngineReports, {}, {}, Effect::report},
    {"--sglang-enable-metrics", none, kEngineReports, {}, {}, Effect::report},
    {"--sglang-enable-metrics-for-all-schedulers", none, kEngineReports, {}, {}, Effect::report},
    {"--sglang-enable-trace", none, kEngineReports, {}, {}, Effect::report},
    {"--sglang-log-requests", none, kEngineReports, {}, {}, Effect::report},
    {"--sglang-log-requests-level", one, kEngineReports, {}, {}, Effect::report},
    {"--sglang-enable-request-time-stats-logging", none, kEngineReports, {}, {}, Effect::report},
    {"--sglang-show-time-cost", none, kEngineReports, {}, {}, Effect::report},
    {"--vllm-quantization", one, kQuantized, "none", kMethods},
    {"--sglang-quantization", one, kQuantized, "none", kMethods},
    {"--vllm-generation-config", one, "rollouts are sampled by the flags alone", "vllm"},
    {"--vllm-revision", one, "the model is what --hf-checkpoint names", "main"},
    {"--vllm-code-revision", one, "the model is what --hf-checkpoint names", "main"},
    {"--vllm-tokenizer-revision", one, "the model is what --hf-checkpoint names", "main"},
    {"--sglang-revision", one, "the model is what --hf-checkpoint names", "main"},
    {"--vllm-runner", one, "the engine generates", "auto|generate", "pooling|draft"},
    {"--vllm-task", one, "the engine generates", "auto|generate",
     "embed|embedding|classify|score|reward|transcription|draft"},
    {"--vllm-config-format", one, "config.json", "auto|hf", "mistral"},
    {"--vllm-enable-lora", none, "the engine always serves the trainer's adapter"},
    {"--sglang-enable-lora", none, "the engine always serves the trainer's adapter"},
    {"--sglang-enable-deterministic-inference", none, "every run is deterministic"},
};

// A list of names that are followed by a space each.
bool has(std::string_view list, std::string_view name) {
  for (size_t at = list.find(name); at != std::string_view::npos; at = list.find(name, at + 1))
    if ((at == 0 || list[at - 1] == ' ') && list.substr(at + name.size()).starts_with(' ')) return true;
  return false;
}

struct EngineNames {
  std::string_view prefix, settings, switches;
};
constexpr EngineNames kServerFlags[] = {{"--vllm-", kVllmSettings, kVllmSwitches},
                                        {"--sglang-", kSglangSettings, kSglangSwitches}};

}  // namespace

const Compatible* engine_flag(std::string_view flag) {
  for (const Compatible& row : kRows)
    if (row.name == flag) return &row;
  // vLLM's switches have both forms; of SGLang's, miles adds the other one of this.
  constexpr std::string_view kNoVllm = "--no-vllm-", kNoSglang = "--no-sglang-lora-use-virtual-experts";
  if (flag == kNoSglang || (flag.starts_with(kNoVllm) && has(kVllmSwitches, flag.substr(kNoVllm.size()))))
    return &kSwitch;
  for (const EngineNames& engine : kServerFlags) {
    if (!flag.starts_with(engine.prefix)) continue;
    const std::string_view name = flag.substr(engine.prefix.size());
    if (has(engine.switches, name)) return &kSwitch;
    if (has(engine.settings, name)) return &kSetting;
  }
  return nullptr;
}

std::span<const Compatible> engine_rows() {
  return kRows;
}

std::vector<std::string> engine_flag_names() {
  std::vector<std::string> names;
  for (const Compatible& row : kRows) names.emplace_back(row.name);
  for (const EngineNames& engine : kServerFlags)
    for (std::string_view list : {engine.settings, engine.switches})
      while (!list.empty()) {
        const size_t end = list.find(' ');
        names.push_back(std::string(engine.prefix).append(list.substr(0, end)));
        list.remove_prefix(end + 1);
      }
  return names;
}

}  // namespace lockstep::cli
