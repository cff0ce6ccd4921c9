#!/usr/bin/env bash
# The GPU tests of a gtest binary under compute-sanitizer, in up to eight processes. Matmuls are not timed to choose their kernels (tests/support/gpu_stream.h).
#   gpu_sanitizer.sh build/release/kernels_test [TOOL=memcheck] [FILTER=all GPU tests]      TOOL: memcheck | racecheck | synccheck | initcheck
# Fails if a tool reports an error, a test fails, or a part does not end within PART_SECONDS (1800). The parts' output
# goes to LOGS (beside the binary: sanitizer-TOOL).
set -uo pipefail
binary=${1:?usage: gpu_sanitizer.sh BINARY [TOOL] [FILTER]}
tool=${2:-memcheck}
filter=${3:-*Cuda*:*GpuAgreesWithCpu*}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "gpu_sanitizer: no compute-sanitizer in PATH or /usr/local/cuda/bin; it comes with the CUDA toolkit" >&2; exit 1; }
[ -e /dev/nvidiactl ] || { echo "gpu_sanitizer: this machine has no GPU" >&2; exit 1; }
logs=${LOGS:-$(dirname "$binary")/sanitizer-$tool}
mkdir -p "$logs"
parts=$(($(nproc) < 8 ? $(nproc) : 8))
export LOCKSTEP_UNTIMED_KERNELS=1
for i in $(seq 0 $((parts - 1))); do
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$i timeout -s INT -k 10 "${PART_SECONDS:-1800}" \
    "$sanitizer" --tool "$tool" --error-exitcode 9 "$binary" --gtest_filter="$filter" > "$logs/$i.txt" 2>&1 &
done
wait
passed=0 status=0
for i in $(seq 0 $((parts - 1))); do
  log=$logs/$i.txt
  passed=$((passed + $(grep -c '^\[       OK \]' "$log")))
  if ! grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log" || grep -q '^\[  FAILED  \]' "$log"; then
    status=1
    echo "$log: $(grep -E 'SUMMARY|FAILED  \]' "$log" | tail -1) after $(grep '^\[ RUN' "$log" | tail -1)"
  fi
done
echo "$tool: $passed tests passed in $SECONDS s, $([ "$status" = 0 ] && echo "no errors" || echo "NOT CLEAN, see above")"
[ "$passed" -gt 0 ] || { echo "gpu_sanitizer: no test ran" >&2; exit 1; }
exit "$status"
