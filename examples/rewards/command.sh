#!/usr/bin/env bash
# GRPO on the embedded model with a reward program: command.sh path/to/lockstep
set -eu
cd "$(dirname "$0")/../.."
"${1:-build/release/lockstep}" train --hf-checkpoint models/arith --prompt-data models/arith/train.jsonl \
  --input-key prompt --label-key label --lora-rank 8 --target-modules all-linear --lr 1e-3 \
  --rm-type command --reward-command 'python3 examples/rewards/grade.py' --reward-workers 2 \
  --num-rollout 2 --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 16
