#!/usr/bin/env bash
# Ranks that mpirun has started: the verbs over MPI, and training over TCP and over MPI with the bits of one process.
# Usage: mpirun.sh BUILD MODEL. 77: there is no MPI.
set -euo pipefail
build=$1 model=$2 steps=5
command -v mpirun >/dev/null && [ -x "$build/mpi_test" ] || { echo "skipped: no MPI (libopenmpi-dev, openmpi-bin)"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run() {  # RANKS COMMAND...
  local ranks=$1; shift
  mpirun -n "$ranks" --oversubscribe --bind-to none --timeout 120 --mca pml ob1 --mca btl self,vader,tcp "$@"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ranks in 2 3; do
  MPI_TEST_PORT=$((21000 + ($$ + ranks) % 9000)) run "$ranks" -x MPI_TEST_PORT "$build/mpi_test" --gtest_color=no > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  echo "verbs over MPI, $ranks ranks: $(grep -c '^\[  PASSED  \]' "$work/log") processes passed"
done

for i in $(seq 0 22); do echo "{\"prompt\": \"$i+$i=\", \"completion\": \"$((2 * i))\"}"; done > "$work/rows.jsonl"
train() {  # SAVE OPTION...
  local save=$1; shift
  echo "$build/lockstep" sft --hf-checkpoint "$model" --prompt-data "$work/rows.jsonl" --lora-rank 4 --target-modules all-linear \
    --lr 1e-3 --device cpu --threads 1 --global-batch-size 7 --train-iters $steps --lora-dropout 0.1 --save "$work/$save" "$@"
}
$(train alone) > "$work/log" 2>&1
adapter=$(printf 'iter_%07d/lora_adapter/adapter_model.safetensors' $steps)
for ranks in 2 4; do
  for backend in gloo mpi; do
    run "$ranks" $(train "$backend$ranks" --distributed-backend $backend) > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    cmp "$work/alone/$adapter" "$work/$backend$ranks/$adapter"
    echo "training under mpirun, $ranks ranks, $backend: the adapter of one process"
  done
  grep -q "does so by MPI" "$work/log" || { echo "MPI was not used"; exit 1; }
done

# What the thread that samples ahead exchanges moves over TCP, beside MPI.
rl() {  # SAVE OPTION...
  local save=$1; shift
  echo "$build/lockstep" train --hf-checkpoint "$model" --prompt-data "$model/train.jsonl" --input-key prompt --label-key label --rm-type number \
    --num-rollout $steps --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 12 --lora-rank 4 --target-modules all-linear \
    --lr 1e-3 --device cpu --threads 1 --max-staleness 1 --save "$work/$save" "$@"
}
$(rl ahead) > "$work/log" 2>&1
run 2 $(rl ahead2 --distributed-backend mpi) > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmp "$work/ahead/$adapter" "$work/ahead2/$adapter"
echo "sampling ahead under mpirun, 2 ranks: the adapter of one process"
