#!/usr/bin/env bash
# Two hosts, as network namespaces, train together until the link between them is cut. Both sides end by themselves with
# an error, nothing is left running, and the same commands go on from the checkpoint to the bits of one process.
# Usage: cut_link.sh LOCKSTEP MODEL. Needs root and iproute2; 77: they are not there.
set -euo pipefail
lockstep=$1 model=$2 steps=100
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
train() {  # SAVE
  echo sft --hf-checkpoint "$model" --prompt-data "$work/rows.jsonl" --lora-rank 4 --target-modules all-linear --lr 1e-3 \
    --device cpu --threads 1 --global-batch-size 7 --train-iters $steps --lr-decay-iters $steps --save-interval 1 \
    --save-total-limit 3 --save "$work/$1" --load "$work/$1"
}
start() {  # HOST
  ip netns exec "lockstep-$$-$1" "$lockstep" launch -n 1 --num-nodes 2 --node-rank "$1" --master-addr 10.87.0.1 \
    --master-port 29500 --job-secret-file "$work/secret" $(train part) > "$work/log$1" 2>&1 &
}
fail() { echo "FAILED: $*"; tail -n 5 "$work"/log*; exit 1; }
lines() { cat "$work/part/metrics.jsonl" 2>/dev/null | wc -l; }

start 0; first=$!
start 1; second=$!
for _ in $(seq 3000); do [ "$(lines)" -ge 4 ] && break; sleep 0.02; done
[ "$(lines)" -ge 4 ] || fail "the run did not begin"
ip -n "lockstep-$$-0" link set link0 down
SECONDS=0
first_code=0; second_code=0
wait $first || first_code=$?
wait $second || second_code=$?
took=$SECONDS
echo "cut link: both sides ended after $took s, exit codes $first_code and $second_code"
[ $took -le 5 ] || fail "it took too long"  # 2 s were measured; receipts are waited for for 1.5
[ $first_code = 1 ] && [ $second_code = 1 ] || fail "exit codes"
for n in 0 1; do [ -z "$(ip netns pids "lockstep-$$-$n")" ] || fail "a process is left in namespace $n"; done
grep -q "gives no sign of life\|the network to it is cut" "$work/log0" || fail "the reason is not named"
[ "$(lines)" -lt $steps ] || fail "the run had ended before the cut"

ip -n "lockstep-$$-0" link set link0 up
start 0; first=$!
start 1; second=$!
wait $first || fail "resumed, rank 0"
wait $second || fail "resumed, rank 1"
"$lockstep" $(train alone) > "$work/log2" 2>&1 || fail "alone"
adapter=$(printf 'iter_%07d/lora_adapter/adapter_model.safetensors' $steps)
cmp "$work/part/$adapter" "$work/alone/$adapter" || fail "the resumed adapter is another one"
echo "the resumed run has the adapter of one process"
