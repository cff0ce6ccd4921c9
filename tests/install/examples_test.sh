#!/usr/bin/env bash
# The examples reach a held-out accuracy of 0.9, greedy; with ROLLOUTS only so many of each, and they come to their end.
#   examples_test.sh LOCKSTEP WORK_DIRECTORY [ROLLOUTS]
set -euo pipefail
lockstep=$1 work=$2 rollouts=${3:-}
rm -rf "$work"
accuracy() {
  sed -n 's/.*: accuracy \([0-9.]*\) .*/\1/p' | head -1 | tee /dev/stderr | awk -v least="$([ -n "$rollouts" ] || echo 0.9)" \
    '{ seen = 1; if ($1 < least) exit 1 } END { exit !seen }'
}
examples/grpo_math.sh "$lockstep" "$work/grpo" $rollouts | accuracy
examples/opd.sh "$lockstep" "$work/grpo" "$work/opd" $rollouts | accuracy
examples/ppo.sh "$lockstep" "$work/ppo" $rollouts | accuracy
