#!/usr/bin/env bash
# On-policy distillation: a student that is told no reward learns from the adapter that examples/grpo_math.sh made.
#   examples/opd.sh [LOCKSTEP] [TEACHER_RUN] [RUN_DIRECTORY] [ROLLOUTS]
set -euo pipefail
lockstep=${1:-build/release/lockstep} teacher=${2:-build/grpo_math} run=${3:-build/opd} rollouts=${4:-40}
[ -d "$teacher" ] || examples/grpo_math.sh "$lockstep" "$teacher"
ARGS="--advantage-estimator on_policy_distillation --opd-teacher-load $teacher" \
  examples/grpo_math.sh "$lockstep" "$run" "$rollouts"
