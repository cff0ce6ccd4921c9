#!/usr/bin/env bash
# GRPO with LoRA on the embedded model: sums of two numbers, rewarded where the last number is right.
#   examples/grpo_math.sh [LOCKSTEP] [RUN_DIRECTORY] [ROLLOUTS]
set -euo pipefail
lockstep=${1:-build/release/lockstep} run=${2:-build/grpo_math} rollouts=${3:-80} model=models/arith
data=(--input-key prompt --label-key label --rm-type number)
"$lockstep" train --hf-checkpoint "$model" --prompt-data "$model/train.jsonl" "${data[@]}" --num-rollout "$rollouts" \
  --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 24 --rollout-shuffle \
  --lora-rank 8 --target-modules all-linear --lr 2e-3 --save "$run" ${ARGS:-}
"$lockstep" eval --hf-checkpoint "$model" --prompt-data "$model/test.jsonl" "${data[@]}" --max-tokens 24 \
  --lora-adapter-path "$run/iter_$(printf %07d "$rollouts")/lora_adapter"
