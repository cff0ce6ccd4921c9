// What published launch scripts pass: every flag of 37 launches of radixark/miles (tests/snapshots/launch_scripts at
// 31f1ca961) and of the option tables of vime, miles and slime, and two argument lists in full (miles examples/lora).
// Data paths end in .jsonl here.
#pragma once

namespace lockstep::cli {

inline constexpr char kLaunchFlags[] = R"(
    --accumulate-allreduce-grads-in-fp32 --actor-num-gpus-per-node --actor-num-nodes --adam-beta1 --adam-beta2
    --add-qkv-bias --advantage-estimator --allgather-cp --apply-chat-template --apply-layernorm-1p
    --attention-backend --attention-dropout --attention-output-gate --attention-softmax-in-fp32
    --attn-implementation --balance-data --beta-fast --beta-slow --bf16 --calculate-per-token-loss
    --check-weight-update-equal --colocate --context-parallel-size --custom-config-path
    --custom-generate-function-path --custom-reward-post-process-path --custom-rm-path --custom-tis-function-path
    --data-pad-size-multiplier --debug-train-only --decoder-last-pipeline-num-layers --deterministic-mode
    --disable-bias-linear --disable-compute-advantages-and-returns --disable-wandb-random-suffix --dump-details
    --dynamic-sampling-filter-path --enable-experimental --entropy-coef --eps-clip --eps-clip-high --eval-config
    --eval-function-path --eval-input-key --eval-interval --eval-max-response-len --eval-prompt-data
    --eval-temperature --eval-top-k --eval-top-p --expert-model-parallel-size --expert-tensor-parallel-size
    --experts-shared-outer-loras --ffn-hidden-size --filter-zero-reward-samples --fp8-format --fp8-recipe
    --global-batch-size --gradient-checkpointing --group-query-attention --hf-checkpoint --hidden-dropout
    --hidden-size --input-key --kl-coef --kl-loss-coef --kl-loss-type --kv-channels --kv-lora-rank --label-key
    --load --log-probs-chunk-size --lora-alpha --lora-base-cpu-backup --lora-dropout --lora-rank --loss-type --lr
    --lr-decay-style --lr-warmup-fraction --make-vocab-size-divisible-by --max-position-embeddings
    --max-tokens-per-gpu --megatron-to-hf-mode --micro-batch-size --min-lr --model-name --moe-aux-loss-coeff
    --moe-enable-deepep --moe-ffn-hidden-size --moe-grouped-gemm --moe-layer-freq --moe-permute-fusion
    --moe-router-bias-update-rate --moe-router-dtype --moe-router-enable-expert-bias --moe-router-group-topk
    --moe-router-load-balancing-type --moe-router-num-groups --moe-router-pre-softmax --moe-router-score-function
    --moe-router-topk --moe-router-topk-scaling-factor --moe-shared-expert-gate
    --moe-shared-expert-intermediate-size --moe-token-dispatcher-type --moe-token-drop-policy --mscale
    --mscale-all-dim --mtp-num-layers --multi-latent-attention --multimodal-keys --n-samples-per-eval-prompt
    --n-samples-per-prompt --no-check-for-nan-in-loss-and-grad --no-gradient-accumulation-fusion
    --no-masked-softmax-fusion --no-position-embedding --no-rope-fusion --norm-epsilon --normalization
    --num-attention-heads --num-epoch --num-experts --num-gpus-per-node --num-layers --num-query-groups
    --num-rollout --num-steps-per-rollout --opd-kl-coef --opd-log-prob-top-k --opd-reward-weight-mode
    --opd-teacher-key --opd-teacher-load --opd-teacher-urls --opd-top-k-strategy --opd-type --optimizer
    --optimizer-cpu-offload --original-max-position-embeddings --over-sampling-batch-size
    --overlap-cpu-optimizer-d2h-h2d --pipeline-model-parallel-size --position-embedding-type --prompt-data
    --q-lora-rank --qk-head-dim --qk-layernorm --qk-pos-emb-head-dim --qkv-format --recompute-granularity
    --recompute-method --recompute-num-layers --ref-load --rm-type --rm-url --rollout-batch-size
    --rollout-function-path --rollout-max-context-len --rollout-max-response-len --rollout-num-gpus
    --rollout-num-gpus-per-engine --rollout-shuffle --rollout-temperature --rope-type --rotary-base --rotary-percent
    --rotary-scaling-factor --save --save-interval --sequence-parallel --sglang-attention-backend
    --sglang-chunked-prefill-size --sglang-cuda-graph-bs --sglang-cuda-graph-max-bs --sglang-decode-log-interval
    --sglang-disable-cuda-graph --sglang-dp-size --sglang-dtype --sglang-enable-deterministic-inference
    --sglang-enable-dp-attention --sglang-enable-dp-lm-head --sglang-enable-metrics --sglang-ep-size
    --sglang-expert-parallel-size --sglang-fp8-gemm-backend --sglang-lora-backend --sglang-lora-use-virtual-experts
    --sglang-mamba-scheduler-strategy --sglang-max-running-requests --sglang-mem-fraction-static
    --sglang-model-loader-extra-config --sglang-moe-dense-tp-size --sglang-moe-runner-backend
    --sglang-nsa-decode-backend --sglang-nsa-prefill-backend --sglang-page-size
    --sglang-remote-instance-weight-loader-ib-device
    --sglang-remote-instance-weight-loader-start-seed-via-transfer-engine --sglang-server-concurrency
    --sglang-watchdog-timeout --softmax-type --spec --swiglu --target-modules --tensor-model-parallel-size
    --train-backend --train-env-vars --transformer-impl --untie-embeddings-and-output-weights
    --update-weight-buffer-size --update-weight-transfer-mode --use-distributed-optimizer --use-dynamic-batch-size
    --use-dynamic-global-batch-size --use-fault-tolerance --use-kl-loss --use-opd --use-precision-aware-optimizer
    --use-rollout-routing-replay --use-rotary-position-embeddings --use-tis --use-wandb --v-head-dim --vocab-size
    --wandb-group --wandb-host --wandb-key --wandb-project --wandb-team --weight-decay --window-attn-skip-freq
    --window-size
)";

inline constexpr char kTableFlags[] = R"(
    --apply-chat-template-kwargs --async-save --balance-by-flops --chat-template-path --check-lora-weight-equal
    --ci-test --ci-train-rollout-logprob-abs-diff-threshold --clip-grad --critic-lr --custom-advantage-function-path
    --custom-loss-function-path --custom-model-provider-path --custom-pg-loss-reducer-function-path
    --debug-rollout-only --disable-grpo-std-normalization --disable-rewards-normalization --disable-weights-backuper
    --eps-clip-c --eval-reward-key --exclude-modules --freeze-params-name-list --gamma --get-mismatch-metrics
    --group-rm --keep-old-actor --lambd --load-debug-rollout-data --log-passrate --log-probs-max-tokens-per-gpu
    --lora-adapter-name --lora-adapter-path --lora-sync-from-tensor --lora-train-only --lora-type --loss-mask-type
    --mask-offpolicy-in-partial-rollout --metadata-key --no-offload --no-save-optim
    --no-sglang-lora-use-virtual-experts --normalize-advantages --num-critic-only-steps --observe-training-entropy
    --offload --offload-rollout --offload-rollout-level --offload-train --offload-train-target
    --only-train-params-name-list --opsm-delta --partial-rollout --pause-generation-mode --pg-loss-type
    --ref-update-interval --rematerialize-param-from-master-weight --reward-key --rollout-max-prompt-len
    --rollout-seed --rollout-skip-special-tokens --rollout-stop --rollout-stop-token-ids --save-debug-rollout-data
    --save-debug-train-data --save-hf --save-trigger-sentinel --score-centering-top-k --seed
    --skip-actor-forward-only --skip-eval-before-train --stream-optimizer-state-to-disk --tb-project-name --tis-clip
    --tis-clip-low --tool-key --update-weight-disk-dir --update-weight-mode --update-weight-transport
    --update-weights-interval --use-opsm --use-rollout-logprobs --use-routing-replay --use-score-centering
    --use-tensorboard --use-unbiased-kl --value-clip --wandb-always-use-train-step
    --critic-load --critic-save --rollout-top-k --rollout-top-p
)";

inline constexpr char kGsm8kLaunch[] = R"(
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --calculate-per-token-loss --swiglu --num-layers 24
    --hidden-size 896 --ffn-hidden-size 4864 --num-attention-heads 14 --use-rotary-position-embeddings
    --disable-bias-linear --add-qkv-bias --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 1000000
    --group-query-attention --num-query-groups 2 --vocab-size 151936 --hf-checkpoint /root/Qwen2.5-0.5B-Instruct/
    --megatron-to-hf-mode bridge --lora-rank 32 --lora-alpha 32 --lora-dropout 0.0 --target-modules all-linear
    --megatron-to-hf-mode bridge --optimizer adam --lr 1e-5 --lr-decay-style constant --weight-decay 0.1
    --adam-beta1 0.9 --adam-beta2 0.98 --advantage-estimator grpo --kl-loss-coef 0.00 --kl-loss-type low_var_kl
    --kl-coef 0.00 --entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28 --use-wandb --wandb-host
    https://wandb.ai/ --wandb-team miles-lora --wandb-project miles-lora-megatron --wandb-group
    qwen2.5-0.5B-gsm8k-test --tensor-model-parallel-size 1 --sequence-parallel --pipeline-model-parallel-size 1
    --context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
    --use-dynamic-batch-size --max-tokens-per-gpu 9216 --eval-interval 10 --eval-prompt-data gsm8k
    /root/gsm8k/test.jsonl --n-samples-per-eval-prompt 1 --eval-max-response-len 1024 --eval-top-k 1
    --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.4 --attention-dropout 0.0 --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 --attention-backend flash --prompt-data
    /root/gsm8k/train.jsonl --input-key messages --label-key label --apply-chat-template --rollout-shuffle --rm-type
    math --num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 1024
    --rollout-temperature 1 --global-batch-size 256
)";

inline constexpr char kDapoLaunch[] = R"(
    --actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate --swiglu --num-layers 36 --hidden-size 2560
    --ffn-hidden-size 9728 --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --use-rotary-position-embeddings --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base
    1000000 --vocab-size 151936 --kv-channels 128 --qk-layernorm --hf-checkpoint /root/models/Qwen3-4B
    --megatron-to-hf-mode bridge --prompt-data /root/datasets/dapo-math-17k/dapo-math-17k.jsonl --input-key prompt
    --label-key label --apply-chat-template --rollout-shuffle --rm-type deepscaler --num-rollout 3000
    --rollout-batch-size 16 --n-samples-per-prompt 8 --rollout-max-response-len 2048 --rollout-temperature 1
    --over-sampling-batch-size 64 --dynamic-sampling-filter-path
    miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std --global-batch-size 128
    --balance-data --optimizer adam --lr 1e-5 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9
    --adam-beta2 0.98 --advantage-estimator grpo --kl-loss-coef 0.00 --kl-loss-type low_var_kl --entropy-coef 0.00
    --eps-clip 0.2 --eps-clip-high 0.28 --use-wandb --wandb-host https://wandb.ai/ --wandb-team miles-lora
    --wandb-project miles-lora-megatron --wandb-group qwen3-4B-test --tensor-model-parallel-size 2
    --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 --expert-model-parallel-size 1
    --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --use-dynamic-batch-size --max-tokens-per-gpu 9216 --eval-interval 5 --eval-prompt-data aime24
    /root/datasets/aime-2024/aime-2024.jsonl --n-samples-per-eval-prompt 2 --eval-max-response-len 16384
    --eval-top-k 1 --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7
    --sglang-enable-deterministic-inference --sglang-attention-backend flashinfer --deterministic-mode
    --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
    --attention-backend flash --lora-rank 32 --lora-alpha 32 --lora-dropout 0.0 --target-modules all-linear
    --megatron-to-hf-mode bridge
)";

// miles' examples/ppo/run_qwen3_4b_ppo.py, without its paths of checkpoints, and with an adapter.
inline constexpr char kPpoLaunch[] = R"(
    --hf-checkpoint /root/models/Qwen3-4B/ --prompt-data /root/datasets/dapo-math-17k/dapo-math-17k.jsonl --input-key
    prompt --label-key label --apply-chat-template --rollout-shuffle --rm-type deepscaler --num-rollout 300
    --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --rollout-temperature 0.8
    --global-batch-size 32 --balance-data --optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1
    --adam-beta1 0.9 --adam-beta2 0.98 --advantage-estimator ppo --critic-lr 1e-5 --num-critic-only-steps 1
    --normalize-advantages --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type k1 --kl-coef 0.00 --entropy-coef 0.00
    --eps-clip 0.2 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --context-parallel-size 2
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size
    --max-tokens-per-gpu 16384 --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.8
    --sglang-max-running-requests 512 --attention-dropout 0.0 --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 --attention-backend flash --actor-num-nodes 1
    --actor-num-gpus-per-node 4 --colocate --lora-rank 32 --lora-alpha 32 --target-modules all-linear
)";

}  // namespace lockstep::cli
