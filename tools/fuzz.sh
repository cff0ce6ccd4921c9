#!/usr/bin/env bash
# Runs the libFuzzer programs of a build (preset fuzz) for SECONDS each, one per core at a time, and writes a record under
# bench/records/. What they found grows in BUILD/fuzz/corpus; inputs that failed are in BUILD/fuzz/failed.
#   fuzz.sh build/fuzz SECONDS [TARGET...]
# TARGETs are names of tests/fuzz/NAME_fuzz.cpp (http openai ...); none: every program of the build. A run of some has a
# record of its own name.
set -uo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0"; exit; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:?usage: fuzz.sh BUILD SECONDS [TARGET...]}"); seconds=${2:?usage: fuzz.sh BUILD SECONDS [TARGET...]}; shift 2
targets=("$@")
[ $# -gt 0 ] || for program in "$build"/fuzz_*; do targets+=("$(basename "$program" | cut -c6-)"); done

# An input that takes 10 s is a hang, one block of 1 GiB or 2 GiB in all is an unbounded allocation. Either is a failure.
one() {
  local root=$1 build=$2 seconds=$3 name=$4 dictionary=()
  local work="$build/fuzz/corpus/$name" failed="$build/fuzz/failed/$name" log="$build/fuzz/$name.log"
  mkdir -p "$work" "$failed"
  [ -f "$root/tests/fuzz/$name.dict" ] && dictionary=("-dict=$root/tests/fuzz/$name.dict")
  nice -n 10 "$build/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -print_final_stats=1 "${dictionary[@]}" -artifact_prefix="$failed/" "$work" "$root/tests/fuzz/corpus/$name" >"$log" 2>&1
  local status=$?
  echo "$name: exit $status, $(grep -oP 'number_of_executed_units: \K\d+' "$log") executions, $(ls "$failed" | wc -l) failures"
  echo "$status" >"$build/fuzz/$name.status"
}
export -f one
mkdir -p "$build/fuzz"
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'one "$@"' _ "$root" "$build" "$seconds" {}
exec python3 "$root/tools/fuzz_record.py" "$build" "$seconds" "${targets[@]}"
