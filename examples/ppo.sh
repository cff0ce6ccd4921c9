#!/usr/bin/env bash
# PPO: advantages are those of generalized advantage estimation over a critic, a second adapter with a value head on the same base.
#   examples/ppo.sh [LOCKSTEP] [RUN_DIRECTORY] [ROLLOUTS]
set -euo pipefail
lockstep=${1:-build/release/lockstep} run=${2:-build/ppo} rollouts=${3:-80}
ARGS="--advantage-estimator ppo --lambd 0.95 --normalize-advantages --critic-lr 5e-3 --num-critic-only-steps 2" \
  examples/grpo_math.sh "$lockstep" "$run" "$rollouts"
