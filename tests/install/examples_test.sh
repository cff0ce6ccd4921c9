#!/usr/bin/env bash
# The examples reach a held-out accuracy of 0.9, greedy.   examples_test.sh LOCKSTEP WORK_DIRECTORY
set -euo pipefail
lockstep=$1 work=$2
rm -rf "$work"
accuracy() { sed -n 's/.*: accuracy \([0-9.]*\) .*/\1/p' | head -1 | tee /dev/stderr | awk '{ exit !($1 >= 0.9) }'; }
examples/grpo_math.sh "$lockstep" "$work/grpo" | accuracy
examples/opd.sh "$lockstep" "$work/grpo" "$work/opd" | accuracy
examples/ppo.sh "$lockstep" "$work/ppo" | accuracy
