// Flags of launch scripts that change results and are not available yet, and the flags that repeat config.json.
#include "cli/known.h"

namespace lockstep::cli {

namespace {

constexpr std::string_view kLater[] = {
    // Sampling and data.
    "--over-sampling-batch-size", "--dynamic-sampling-filter-path", "--partial-rollout",
    "--mask-offpolicy-in-partial-rollout", "--filter-zero-reward-samples", "--rollout-max-context-len",
    "--rollout-function-path", "--rollout-all-samples-process-path", "--rollout-data-postprocess-path",
    "--rollout-data-transport", "--rollout-sample-filter-path", "--rollout-sample-hook-path", "--rollout-buffer-url",
    "--rollout-external*", "--rollout-task-type", "--rollout-submission-granularity", "--buffer-filter-path",
    "--data-source-path", "--disable-rollout-global-dataset", "--disable-rollout-trim-samples",
    "--fetch-trajectory-retry-times", "--min-batch-collection-ratio", "--start-rollout-id", "--prefill-num-servers",
    "--fully-async", "--async-*", "--custom-*", "--max-weight-staleness", "--use-session-server", "--session-*",
    "--tito-model", "--multimodal-keys", "--tool-key", "--apply-chat-template-kwargs", "--chat-template-path",
    "--loss-mask-type", "--use-dynamic-global-batch-size", "--allow-partial-train-step",
    // Rewards and evaluation.
    "--rm-url", "--group-rm", "--reward-key", "--eval-reward-key", "--eval-config", "--eval-function-path",
    "--eval-max-prompt-len", "--eval-max-context-len", "--eval-min-new-tokens", "--eval-tool-key", "--eval-hf-dir",
    "--eval-num-gpus*", "--eval-keep-snapshots", "--eval-max-in-flight", "--eval-overflow-policy", "--log-passrate",
    "--log-multi-turn", "--log-correct-samples", "--log-reward-category",
    // Algorithms.
    "--use-tis", "--tis-*", "--use-opsm", "--opsm-delta", "--use-opd", "--opd-*", "--use-unbiased-kl",
    "--normalize-advantages", "--pg-loss-type", "--use-score-centering", "--score-centering-*", "--keep-old-actor",
    "--ref-update-interval", "--ref-ckpt-step", "--critic-*", "--use-critic", "--use-routing-replay",
    "--use-rollout-routing-replay", "--use-indexer-replay", "--use-rollout-indexer-replay", "--use-rollout-entropy",
    "--disable-compute-advantages-and-returns", "--use-stateless-adam", "--reset-optimizer-states",
    "--lr-warmup-samples", "--lr-warmup-init", "--lr-wsd-*",
    // LoRA.
    "--lora-train-only", "--experts-shared-outer-loras", "--multi-lora-*",
    // Models: mixtures of experts, latent attention, YaRN, multi-token prediction, FP8.
    "--moe-*", "--num-experts", "--multi-latent-attention", "--kv-lora-rank", "--q-lora-rank", "--qk-head-dim",
    "--qk-pos-emb-head-dim", "--v-head-dim", "--beta-fast", "--beta-slow", "--mscale", "--mscale-all-dim",
    "--original-max-position-embeddings", "--rope-type", "--rotary-scaling-factor", "--rotary-interleaved",
    "--use-rope-scaling", "--rope-scaling-factor", "--apply-layernorm-1p", "--attention-output-gate", "--window-size",
    "--window-attn-skip-freq", "--mtp-*", "--enable-mtp-training", "--spec", "--experimental-attention-variant",
    "--dsv4-*", "--dsa-*", "--miles-dsa-*", "--freeze-indexer", "--freeze-e-score-correction-bias",
    "--activation-func-clamp-value", "--no-activation-func-clamp-shared-expert", "--qwen-gdn-backend",
    "--linear-attention-backend", "--fp8-*", "--te-precision-config-file", "--extra-high-precision-layers-*",
    "--megatron-config-path", "--megatron-deepgemm-*",
    // Checkpoints and debugging.
    "--save-hf", "--save-trigger-sentinel", "--no-load-optim", "--no-load-rng", "--finetune", "--ckpt-step",
    "--rematerialize-*", "--stream-optimizer-state-*", "--release-train", "--debug-*", "--load-debug-*",
    "--load-forge-*", "--save-debug-*", "--save-local-weight-checksum", "--dump-details", "--dumper-*", "--profile*",
    "--use-pytorch-profiler", "--record-memory-history", "--memory-*", "--ci-*", "--enable-witness",
    "--witness-buffer-size", "--enable-event-analyzer",
};

constexpr std::string_view kSftLater[] = {"--input-key", "--num-rollout", "--eval-interval", "--eval-prompt-data"};

constexpr ShapeFlag kShape[] = {
    {"--num-layers", Arity::one},
    {"--hidden-size", Arity::one},
    {"--ffn-hidden-size", Arity::one},
    {"--num-attention-heads", Arity::one},
    {"--num-query-groups", Arity::one},
    {"--kv-channels", Arity::one},
    {"--vocab-size", Arity::one},
    {"--max-position-embeddings", Arity::one},
    {"--rotary-base", Arity::one},
    {"--rotary-percent", Arity::one},
    {"--norm-epsilon", Arity::one},
    {"--normalization", Arity::one},
    {"--position-embedding-type", Arity::one},
    {"--swiglu", Arity::none},
    {"--qk-layernorm", Arity::none},
    {"--add-qkv-bias", Arity::none},
    {"--untie-embeddings-and-output-weights", Arity::none},
    {"--group-query-attention", Arity::none},
    {"--disable-bias-linear", Arity::none},
    {"--use-rotary-position-embeddings", Arity::none},
};

}  // namespace

std::span<const std::string_view> later_flags() { return kLater; }
std::span<const std::string_view> sft_later_flags() { return kSftLater; }
std::span<const ShapeFlag> shape_flags() { return kShape; }

}  // namespace lockstep::cli
