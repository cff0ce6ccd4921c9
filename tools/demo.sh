#!/usr/bin/env bash
# The main job on the embedded model: held-out accuracy before, GRPO with LoRA, accuracy after.   demo.sh build/release/lockstep
set -euo pipefail
lockstep=${1:?usage: demo.sh LOCKSTEP}
model=models/arith
run=build/demo
rm -rf "$run"
evaluate=("$lockstep" eval --hf-checkpoint "$model" --prompt-data "$model/test.jsonl" --input-key prompt --label-key label
          --rm-type number --max-tokens 24)
# Prints what `lockstep eval` says and keeps its accuracies, greedy and sampled, in $accuracies.
measure() {
  local text; text=$("${evaluate[@]}" "$@"); echo "$text"
  accuracies=$(sed -n 's/.*: accuracy \([0-9.]*\) .*/\1/p' <<< "$text")
}
echo "== before: 500 held-out sums"
measure
echo "== GRPO-LoRA"
"$lockstep" train --hf-checkpoint "$model" --prompt-data "$model/train.jsonl" --input-key prompt --label-key label \
  --rm-type number --num-rollout 80 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 24 \
  --global-batch-size 256 --advantage-estimator grpo --rollout-shuffle --lr 2e-3 --lora-rank 8 --lora-alpha 16 \
  --target-modules all-linear --save "$run"
echo "== after"
measure --lora-adapter-path "$run/iter_0000080/lora_adapter"
awk '$1 < 0.95 { low = 1 } END { exit low || NR != 2 }' <<< "$accuracies" || {
  echo "demo: an accuracy of at least 0.95 was expected, greedy and sampled" >&2; exit 1; }
echo "the adapter lies in $run/iter_0000080/lora_adapter (a PEFT directory; try: $lockstep inspect $run)"
