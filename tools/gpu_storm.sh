#!/usr/bin/env bash
# Adapters that are loaded, replaced and unloaded under load on a GPU: in one process, beside a training run, and over HTTP.
#   gpu_storm.sh [BUILD=build/release] [SECONDS_EACH=600]
# Every answer is compared, bit for bit, with what the version it names says alone. Prints what was counted; fails if
# anything differed, failed, or disturbed the recording of a graph.
set -uo pipefail
build=${1:-build/release}
seconds=${2:-600}
[ -e /dev/nvidiactl ] || { echo "gpu_storm: this machine has no GPU" >&2; exit 1; }
status=0
LOCKSTEP_STORM_SECONDS=$seconds "$build/recipes_test" --gtest_filter='*StormTest*Cuda' --gtest_brief=1 || status=1
tools/storm_client.py "$build/lockstep" --device cuda --seconds "$seconds" || status=1
[ "$status" = 0 ] && echo "gpu_storm: calm" || echo "gpu_storm: NOT CALM, see above"
exit "$status"
