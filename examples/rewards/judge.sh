#!/usr/bin/env bash
# GRPO with a judge behind an OpenAI chat route; judge.py stands in for a real one: judge.sh path/to/lockstep
set -eu
cd "$(dirname "$0")/../.."
coproc python3 examples/rewards/judge.py
trap 'kill "$COPROC_PID"' EXIT
read -r port <&"${COPROC[0]}"
"${1:-build/release/lockstep}" train --hf-checkpoint models/arith --prompt-data models/arith/train.jsonl \
  --input-key prompt --label-key label --lora-rank 8 --target-modules all-linear --lr 1e-3 \
  --rm-type judge --rm-url "http://127.0.0.1:$port" --judge-model stand-in \
  --num-rollout 2 --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 16
