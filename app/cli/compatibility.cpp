// The table of accepted flags without effect. The first row that means a flag is the one that counts.
#include "cli/known.h"

namespace lockstep::cli {

namespace {

using enum Arity;

constexpr std::string_view kMetrics = "metrics go to <save>/metrics.jsonl and to the terminal";
constexpr std::string_view kWandb =
    "nothing is sent: `wandb sync` sends what --use-wandb writes, with its own settings";
constexpr std::string_view kOneProcess =
    "each rank has the whole model on one device; --actor-num-gpus-per-node says how many ranks there are";
constexpr std::string_view kRanks = "one rank on one device";
constexpr std::string_view kFullPrecision =
    "adapters, gradients, sums and optimizer state are f32, activations too on the CPU and bf16 on a GPU";
constexpr std::string_view kKernels = "kernels are chosen by the build; every choice gives the same bits";
constexpr std::string_view kTokens =
    "micro-batches are chosen by tokens (--max-tokens-per-gpu); their split never changes a bit";
constexpr std::string_view kPublish =
    "publishing swaps a pointer inside the process: nothing is gathered, sent or copied";
constexpr std::string_view kOffload =
    "unnecessary: trainer and engine share one base, and a rollout's KV memory is given back before training";
constexpr std::string_view kSameBits =
    "engine and trainer log-probabilities are the same bits; each rollout measures it (logprob_diff, logprob_diff_max)";
constexpr std::string_view kRecompute = "recomputation is of whole layers and never changes a bit";
constexpr std::string_view kConfig = "read from config.json";
constexpr std::string_view kNoDropout = "the base is frozen and has no dropout";
constexpr std::string_view kCheckpoint = "a checkpoint always holds adapter, optimizer, random state and data position";
constexpr std::string_view kNotFinite =
    "a step with a loss or gradient that is not finite is abandoned and counted; after --max-skipped-steps the run "
    "stops";
constexpr std::string_view kNoRay = "there are no worker processes to set up, watch or route to";

constexpr Compatible kCompatible[] = {
    // Layout of processes and devices.
    {"--train-backend", one,
     "the trainer is native; adapters have the layout of Megatron's unless --lora-type says else", "megatron|fsdp"},
    {"--custom-reward-post-process-path", one, "rewards of a run that distills are 0",
     "miles.rollout.on_policy_distillation.post_process_rewards|slime.rollout.on_policy_distillation.post_process_"
     "rewards|vime.rollout.on_policy_distillation.post_process_rewards",
     "*"},
    {"--megatron-to-hf-mode", one, "adapters are written in Hugging Face names, as bridge mode does", "bridge"},
    // These four are flags of training; --without leaves them out.
    {"--actor-num-nodes", one, kRanks, {}, {}, Effect::told},
    {"--actor-num-gpus-per-node", one, kRanks, {}, {}, Effect::told},
    {"--critic-num-nodes", one, kOneProcess, "1", {}, Effect::layout},
    {"--critic-num-gpus-per-node", one, kOneProcess, "1", {}, Effect::layout},
    {"--num-gpus-per-node", one, kRanks, {}, {}, Effect::told},
    {"--rollout-num-gpus", one, kRanks, {}, {}, Effect::told},
    {"--rollout-num-gpus-per-engine", one, kOneProcess, "1", {}, Effect::layout},
    {"--tensor-model-parallel-size", one, kOneProcess, "1", {}, Effect::layout},
    {"--pipeline-model-parallel-size", one, kOneProcess, "1", {}, Effect::layout},
    {"--decoder-first-pipeline-num-layers", one, kOneProcess, {}, "#", Effect::layout},
    {"--decoder-last-pipeline-num-layers", one, kOneProcess, {}, "#", Effect::layout},
    {"--context-parallel-size", one, kOneProcess, "1", {}, Effect::layout},
    {"--expert-model-parallel-size", one, kOneProcess, "1", {}, Effect::layout},
    {"--expert-tensor-parallel-size", one, kOneProcess, "1", {}, Effect::layout},
    {"--sequence-parallel", none, kOneProcess},
    {"--allgather-cp", none, kOneProcess},
    {"--cp-comm-type", one, kOneProcess, "p2p|a2a|allgather|a2a+p2p"},
    {"--use-distributed-optimizer", none, kOneProcess},
    {"--use-distributed-post", none, kOneProcess},
    {"--overlap-grad-reduce", none, kOneProcess},
    {"--overlap-param-gather", none, kOneProcess},
    {"--overlap-param-gather-with-optimizer-step", none, kOneProcess},
    {"--overlap-p2p-communication", none, kOneProcess},
    {"--overlap-p2p-communication-warmup-flush", none, kOneProcess},
    {"--overlap-moe-expert-parallel-comm", none, kOneProcess},
    {"--overlap-cpu-optimizer-d2h-h2d", none, kOffload},
    {"--offload", none, kOffload},
    {"--offload-train", none, kOffload},
    {"--offload-train-target", one, kOffload, "cpu|disk"},
    {"--offload-rollout", none, kOffload},
    {"--offload-rollout-level", many, kOffload, "kv_cache|weight"},
    {"--no-offload", none, kOffload},
    {"--no-offload-train", none, kOffload},
    {"--no-offload-rollout", none, kOffload},
    {"--optimizer-offload-fraction", one, kOffload, "#"},
    {"--optimizer-cpu-offload", none, kOffload},
    {"--fsdp-cpu-offload", none, kOffload},
    {"--train-memory-margin-bytes", one, kOffload, "#"},
    {"--low-memory-resume", none, kOffload},
    {"--disable-weights-backuper", none, kOffload},
    {"--lora-base-cpu-backup", none, kOffload},
    {"--train-env-vars", one, "no option is read from the environment"},
    {"--rollout-health-check-*", one, kNoRay},
    {"--use-miles-router", none, kNoRay},
    {"--miles-router-*", one, kNoRay},
    {"--router-*", many, kNoRay},
    {"--http-proxy", one, kNoRay},
    {"--pin-rollout-manager-to-head", none, kNoRay},
    // Numbers and kernels.
    {"--accumulate-allreduce-grads-in-fp32", none, kFullPrecision},
    {"--attention-softmax-in-fp32", none, kFullPrecision},
    {"--grad-reduce-in-bf16", none, kFullPrecision},
    {"--use-precision-aware-optimizer", none, kFullPrecision},
    {"--attention-backend", one, kKernels, "auto|flash|fused|unfused|local"},
    {"--attn-implementation", one, kKernels, "eager|sdpa|flash_attention_2|flash_attention_3|flex_attention"},
    {"--transformer-impl", one, kKernels, "local|transformer_engine|inference_optimized"},
    {"--use-flash-attn", none, kKernels},
    {"--no-rope-fusion", none, kKernels},
    {"--no-bias-swiglu-fusion", none, kKernels},
    {"--no-bias-dropout-fusion", none, kKernels},
    {"--no-masked-softmax-fusion", none, kKernels},
    {"--no-gradient-accumulation-fusion", none, kKernels},
    {"--enable-experimental", none, kKernels},
    {"--deterministic-mode", none, "every run is deterministic"},
    {"--no-check-for-nan-in-loss-and-grad", none, kNotFinite},
    {"--check-for-nan-in-loss-and-grad", none, kNotFinite},
    {"--attention-dropout", one, kNoDropout, "0"},
    {"--hidden-dropout", one, kNoDropout, "0"},
    // Batches and memory.
    {"--use-dynamic-batch-size", none, kTokens},
    {"--micro-batch-size", one, kTokens, "#"},
    {"--ref-micro-batch-size", one, kTokens, "#"},
    {"--log-probs-max-tokens-per-gpu", one, kTokens, "#"},
    {"--log-probs-chunk-size", one, "the head works in chunks of bounded size", "#"},
    {"--data-pad-size-multiplier", one, "sequences are packed without padding", "#"},
    {"--qkv-format", one, "sequences are packed without padding", "thd|bshd"},
    {"--recompute-method", one, kRecompute, "uniform|block"},
    {"--recompute-num-layers", one, kRecompute, "#"},
    {"--recompute-loss-function", none, kRecompute},
    // Optimizer.
    {"--optimizer", one, "AdamW", "adam|adamw"},
    // Model.
    {"--model-name", one, kConfig},
    {"--no-position-embedding", none, kConfig},
    {"--make-vocab-size-divisible-by", one, "the vocabulary is not padded", "#"},
    {"--padded-vocab-size", one, "the vocabulary is not padded", "#"},
    {"--softmax-type", one, "attention's softmax is the plain one", "vanilla", "off-by-one|learnable"},
    {"--seq-length", one, "rows are as long as their data, up to the model's context", "#"},
    // Data.
    {"--rollout-skip-special-tokens", none, "rewards always read the response without special tokens"},
    // Algorithm.
    {"--loss-type", one, "the clipped policy loss", "policy_loss", "custom_loss"},
    {"--keep-old-actor", none,
     "every sample keeps the log-probs of the policy that made it; there is no second copy of weights"},
    {"--use-rollout-logprobs", none, kSameBits},
    {"--skip-actor-forward-only", none, kSameBits},
    {"--recompute-logprobs-via-prefill", none, kSameBits},
    {"--get-mismatch-metrics", none, kSameBits},
    {"--observe-training-entropy", none, "entropy is always in <save>/metrics.jsonl"},
    // Publishing.
    {"--update-weight-buffer-size", one, kPublish, "#"},
    {"--update-weight-transfer-mode", one, kPublish, "broadcast|p2p|disk-delta"},
    {"--update-weight-mode", one, kPublish, "full|delta"},
    {"--update-weight-transport", one, kPublish, "nccl|disk"},
    {"--update-weight-disk-dir", one, kPublish},
    {"--update-weight-disk-keep-files", none, kPublish},
    {"--update-weight-delta-encoding", one, kPublish},
    {"--update-weight-delta-checksum", one, kPublish},
    {"--update-weight-local-checkpoint-dir", one, kPublish},
    {"--lora-sync-from-tensor", none, kPublish},
    {"--only-train-params-name-list", many, "LoRA trains its adapters only"},
    {"--freeze-params-name-list", many, "LoRA trains its adapters only"},
    {"--pause-generation-mode", one, "nothing is in flight while the adapter is published", "abort|retract|in_place"},
    // Checkpoints.
    {"--async-save", none, "checkpoints are written while the next iteration runs"},
    {"--no-save-optim", none, kCheckpoint},
    {"--no-save-rng", none, kCheckpoint},
    // Logging.
    {"--use-wandb", none, kMetrics, {}, {}, Effect::told},
    {"--wandb-always-use-train-step", none, "steps of the run are all that is counted", {}, {}, Effect::told},
    {"--wandb-random-suffix", none, kWandb, {}, {}, Effect::told},
    {"--disable-wandb-random-suffix", none, kWandb, {}, {}, Effect::told},
    {"--wandb-*", many, kWandb, {}, {}, Effect::told},
    {"--use-tensorboard", none, kMetrics, {}, {}, Effect::told},
    {"--tb-*", many, kMetrics, {}, {}, Effect::told},
    {"--tensorboard-*", many, kMetrics, {}, {}, Effect::told},
    {"--use-swanlab", none, kMetrics, {}, {}, Effect::report},
    {"--swanlab-*", many, kMetrics, {}, {}, Effect::report},
    {"--use-mlflow", none, kMetrics, {}, {}, Effect::report},
    {"--mlflow-*", many, kMetrics, {}, {}, Effect::report},
    {"--use-prometheus", none, kMetrics, {}, {}, Effect::report},
    {"--prometheus-*", many, kMetrics, {}, {}, Effect::report},
    {"--log-reward-category",
     one,
     "of a reward that is an object its numbers are logged, as reward/NAME",
     {},
     {},
     Effect::report},
    {"--use-miles-dashboard", none, kMetrics, {}, {}, Effect::report},
    {"--log-interval", one, "every step is logged", "#"},
    // Those of engines are in engine_flags.cpp.
};

// What launch scripts of supervised runs pass besides.
constexpr Compatible kSftCompatible[] = {
    {"--apply-chat-template", none, "messages are always rendered by the chat template, other rows never"},
    {"--rollout-function-path", one, "rows are read by this program",
     "slime.rollout.sft_rollout.generate_rollout|miles.rollout.sft_rollout.generate_rollout|vime.rollout.sft_rollout."
     "generate_rollout",
     "*"},
    {"--disable-compute-advantages-and-returns", none, "supervised training has no advantages"},
    {"--debug-train-only", none, "supervised training starts no engine"},
    {"--metadata-key", one, "supervised training has no rewards"},
    {"--colocate", none, "supervised training starts no engine"},
    {"--rollout-num-gpus", one, "supervised training starts no engine", "#"},
    {"--lora-adapter-name", one, "supervised training starts no engine"},
};

}  // namespace

std::span<const Compatible> compatible_flags() {
  return kCompatible;
}
std::span<const Compatible> sft_compatible_flags() {
  return kSftCompatible;
}

}  // namespace lockstep::cli
