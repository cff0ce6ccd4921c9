#!/usr/bin/env bash
# Runs the fast suite of a build folder and says what was skipped and why.   run_tests.sh build/release
set -uo pipefail
build=${1:?usage: run_tests.sh BUILD_FOLDER}
log="$build/tests.log"
jobs=$(nproc)
if [ -e /dev/nvidiactl ]; then jobs=1; fi  # an engine on a GPU takes what memory is left: one test at a time
ctest --test-dir "$build" -L fast -j "$jobs" --output-on-failure --timeout 600 --no-tests=error 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
skipped=$(grep -cE '\*\*\*Skipped' "$log")
if [ "$skipped" -gt 0 ]; then
  gpu=$(grep -E '\*\*\*Skipped' "$log" | grep -cE 'Cuda|GpuAgreesWithCpu')
  echo "$skipped tests were SKIPPED: $gpu need a GPU; $((skipped - gpu)) lack test data or an instruction set:"
  grep -E '\*\*\*Skipped' "$log" | grep -vE 'Cuda|GpuAgreesWithCpu' | sed 's/^/  /'
fi
exit "$status"
