#!/usr/bin/env bash
# Runs the fast suite of a build folder (or what has other labels), shows what failed, says what was skipped and why, and
# closes with one line.
#   run_tests.sh build/release ["fast|quick"]
set -uo pipefail
build=${1:?usage: run_tests.sh BUILD_FOLDER [LABELS]}
labels=${2:-fast}
log="$build/tests.log"
jobs=$(nproc)
[ "$labels" = parallel ] && jobs=$((2 * jobs))  # its tests mostly wait
if [ -e /dev/nvidiactl ]; then jobs=1; fi  # an engine on a GPU takes what memory is left: one test at a time
ctest --test-dir "$build" -L "$labels" -j "$jobs" --output-on-failure --timeout 600 --no-tests=error >"$log" 2>&1 &
runner=$!
trap 'kill "$runner" 2>/dev/null' INT TERM
total=$(ctest --test-dir "$build" -N -L "$labels" | sed -n 's/^Total Tests: //p')
while kill -0 "$runner" 2>/dev/null; do
  sleep 2
  [ -t 1 ] && printf '\r%s of %s tests' "$(grep -cE '^ *[0-9]+/[0-9]+ Test' "$log")" "$total"
done
[ -t 1 ] && printf '\r'
wait "$runner"
status=$?
count() { grep -cE "^ *[0-9]+/[0-9]+ Test .*$1" "$log"; }
failed=$(count "(\*\*\*(Failed|Timeout|Exception)|\*\*\*Not Run [^(]|Subprocess aborted)")
skipped=$(count '\*\*\*Skipped')
passed=$(count ' Passed ')
if [ "$status" -ne 0 ]; then
  # What the failed tests printed: everything but the lines of those that passed or were skipped.
  grep -vE '^ *[0-9]+/[0-9]+ Test .*( Passed |\*\*\*Skipped)|^ *Start +[0-9]+:' "$log"
fi
if [ "$skipped" -gt 0 ]; then
  gpu=$(grep -E '\*\*\*Skipped' "$log" | grep -cE 'Cuda|GpuAgreesWithCpu')
  echo "$skipped tests were SKIPPED: $gpu need a GPU; $((skipped - gpu)) lack test data or an instruction set:"
  grep -E '\*\*\*Skipped' "$log" | grep -vE 'Cuda|GpuAgreesWithCpu' | sed 's/^/  /'
fi
[ "$status" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1  # ctest itself failed
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
