#!/usr/bin/env bash
# Ranks that mpirun has started: the verbs over MPI, and training over TCP and over MPI. What a run leaves behind is that of
# one process, byte for byte: adapters, optimizer state, samples, and all metrics but times, memory and rank_imbalance. Of JSON that holds the
# options, which differ, nothing is compared.
# Usage: mpirun.sh BUILD MODEL. 77: there is no MPI.
set -euo pipefail
build=$(realpath "$1") model=$(realpath "$2")
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

for i in $(seq 0 22); do
  echo "{\"prompt\": \"$i+$i=\", \"completion\": \"$((2 * i))\"}" >> "$work/rows.jsonl"
  echo "{\"prompt\": \"$i+$i=\", \"chosen\": \"$((2 * i))\", \"rejected\": \"$i\"}" >> "$work/pairs.jsonl"
done
# Steps of an odd number of rows, several of them for each rollout.
shared="--hf-checkpoint $model --lora-rank 4 --target-modules all-linear --lr 1e-3 --device cpu --threads 1
  --lora-dropout 0.1 --clip-grad 0.05 --save-interval 1 --save run"
steps="--global-batch-size 7 --train-iters 4"
rollouts="train $shared --prompt-data $model/train.jsonl --input-key prompt --label-key label --rm-type number --num-rollout 4
  --rollout-batch-size 4 --n-samples-per-prompt 3 --global-batch-size 6 --rollout-max-response-len 12 --calculate-per-token-loss"
declare -A method=(
  [sft]="sft $shared $steps --prompt-data $work/rows.jsonl"
  [dpo]="dpo $shared $steps --prompt-data $work/pairs.jsonl"
  [grpo]="$rollouts"
  [ppo]="$rollouts --advantage-estimator ppo --lambd 0.95 --critic-lr 1e-2"
  [ahead]="$rollouts --max-staleness 1"  # what its second thread exchanges moves over TCP, beside MPI
)
metrics() { sed -E 's/"([a-z_]*(_ms|_per_s|memory_bytes)|rank_imbalance)":[^,}]*,?//g; s/,}/}/' "$1/run/metrics.jsonl"; }
expect_same() {  # DIRECTORY WANTED
  diff -r --exclude metrics.jsonl --exclude run.json --exclude train_state.json "$2/run" "$1/run" && diff <(metrics "$2") <(metrics "$1") && [ -n "$(metrics "$1")" ]
}
train() {  # DIRECTORY COMMAND...
  mkdir "$work/$1"
  (cd "$work/$1" && shift && "$@") > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
for name in sft dpo grpo ppo ahead; do
  train "$name" "$build/lockstep" ${method[$name]}
  for ranks in 1 2 4 8; do
    for backend in gloo mpi; do
      [ "$backend$ranks" != mpi1 ] || continue  # one process moves nothing
      train "$name.$backend$ranks" run "$ranks" "$build/lockstep" ${method[$name]} --distributed-backend $backend
      expect_same "$work/$name.$backend$ranks" "$work/$name" || { echo "FAILED: $name, $ranks ranks, $backend: other bytes than one process"; exit 1; }
      [ "$backend$ranks" != mpi4 ] || grep -q "does so by MPI" "$work/log" || { echo "MPI was not used"; exit 1; }
    done
  done
  echo "$name under mpirun, 1, 2, 4 and 8 ranks, over TCP and over MPI: the bytes of one process"
done
