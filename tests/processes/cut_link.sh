#!/usr/bin/env bash
# Two hosts, as network namespaces, train together, supervised and by reinforcement, until the link between them is cut.
# Both sides end by themselves with an error, nothing is left running, and the same commands go on from the checkpoint to
# the bits of one process. A link that is cut before they have met ends both by the deadline.
# Usage: cut_link.sh LOCKSTEP MODEL. Needs root and iproute2; 77: they are not there.
set -euo pipefail
lockstep=$1 model=$2 steps=40
[ "$(id -u)" = 0 ] && command -v ip >/dev/null && ip netns add "lockstep-$$-0" 2>/dev/null || { echo "skipped: no network namespaces"; exit 77; }
work=$(mktemp -d)
trap 'for n in 0 1; do ip netns pids "lockstep-$$-$n" 2>/dev/null | xargs -r kill -KILL || true; ip netns del "lockstep-$$-$n" 2>/dev/null || true; done; rm -rf "$work"' EXIT
ip netns add "lockstep-$$-1"
ip -n "lockstep-$$-0" link add link0 type veth peer name link1 netns "lockstep-$$-1"
for n in 0 1; do
  ip -n "lockstep-$$-$n" addr add "10.87.0.$((n + 1))/24" dev "link$n"
  ip -n "lockstep-$$-$n" link set "link$n" up
  ip -n "lockstep-$$-$n" link set lo up
done

for i in $(seq 0 22); do echo "{\"prompt\": \"$i+$i=\", \"completion\": \"$((2 * i))\"}"; done > "$work/rows.jsonl"
head -c 32 /dev/urandom > "$work/secret"
chmod 600 "$work/secret"
method=sft
train() {  # SAVE
  local shared="--hf-checkpoint $model --lora-rank 4 --target-modules all-linear --lr 1e-3 --device cpu --threads 1
    --lr-decay-iters $steps --save-interval 1 --save-total-limit 3 --save $work/$1 --load $work/$1"
  if [ $method = sft ]; then
    echo sft $shared --prompt-data "$work/rows.jsonl" --global-batch-size 7 --train-iters $steps
  else
    echo train $shared --prompt-data "$model/train.jsonl" --input-key prompt --label-key label --rm-type number \
      --num-rollout $steps --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 12
  fi
}
start() {  # HOST OPTION...
  local host=$1; shift
  ip netns exec "lockstep-$$-$host" "$lockstep" launch -n 1 --num-nodes 2 --node-rank "$host" --master-addr 10.87.0.1 \
    --master-port 29500 --job-secret-file "$work/secret" $(train part) "$@" > "$work/log$host" 2>&1 &
}
fail() { echo "FAILED: $method: $*"; tail -n 5 "$work"/log*; exit 1; }
lines() { cat "$work/part/metrics.jsonl" 2>/dev/null | wc -l; }
expect_ends() {  # WHAT MOST_SECONDS CODE
  local begin=$(date +%s%N) first_code=0 second_code=0
  wait $first || first_code=$?
  wait $second || second_code=$?
  local took=$((($(date +%s%N) - begin) / 1000000))
  echo "$method, $1: both sides ended after $took ms, exit codes $first_code and $second_code"
  [ $took -le $(($2 * 1000)) ] || fail "it took too long"
  [ $first_code = $3 ] && [ $second_code = $3 ] || fail "exit codes"
  for n in 0 1; do [ -z "$(ip netns pids "lockstep-$$-$n")" ] || fail "a process is left in namespace $n"; done
}
link() { ip -n "lockstep-$$-0" link set link0 "$1"; }

cut_and_go_on() {
  rm -rf "$work/part" "$work/alone"
  start 0; first=$!
  start 1; second=$!
  for _ in $(seq 3000); do [ "$(lines)" -ge 4 ] && break; sleep 0.02; done
  [ "$(lines)" -ge 4 ] || fail "the run did not begin"
  link down
  expect_ends "cut link" 5 1  # 2 s were measured; receipts are waited for for 1.5
  grep -q "gives no sign of life\|the network to it is cut" "$work/log0" || fail "the reason is not named"
  [ "$(lines)" -lt $steps ] || fail "the run had ended before the cut"

  link up
  start 0; first=$!
  start 1; second=$!
  wait $first || fail "resumed, rank 0"
  wait $second || fail "resumed, rank 1"
  "$lockstep" $(train alone) > "$work/log2" 2>&1 || fail "alone"
  adapter=$(printf 'iter_%07d/lora_adapter/adapter_model.safetensors' $steps)
  cmp "$work/part/$adapter" "$work/alone/$adapter" || fail "the resumed adapter is another one"
  echo "$method: the resumed run has the adapter of one process"
}
for method in sft rl; do cut_and_go_on; done

link down
start 0 --distributed-timeout-minutes 0.03; first=$!
start 1 --distributed-timeout-minutes 0.03; second=$!
expect_ends "cut before the ranks have met" 7 130
grep -q "not all ranks of the job came" "$work/log0" || fail "the missing rank is not named"
