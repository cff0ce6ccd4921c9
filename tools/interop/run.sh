#!/usr/bin/env bash
# Interop tests against the real PEFT, transformers, llama.cpp, pyarrow and openai:  run.sh build/release/lockstep [VENV [TEST_DATA]]
# The server is compared with a live vLLM if `setup.sh VENV vllm` has put one there, else with its recorded answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
lockstep=$(realpath "${1:?usage: run.sh LOCKSTEP [VENV [TEST_DATA]]}"); venv=${2:-$root/.venv}
command -v python3 >/dev/null && python3 -m venv --help >/dev/null 2>&1 || {
  sudo=(); [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq; "${sudo[@]}" apt-get install -y -qq python3-venv >/dev/null; }
"$here/setup.sh" "$venv" smollm2 llama sglang reports
vllm=(); if [ -x "$venv/bin/vllm" ]; then vllm=(--vllm "$venv/bin/vllm"); fi
"$venv/bin/python" -m pytest -q "$root/tests/interop" --lockstep "$lockstep" --smollm2 "$venv/smollm2" --sglang "$venv/sglang" "${vllm[@]}" ${3:+--test-data "$3"}
# Beside the TRL whose losses are compared there may be a newer one, for its clients.
if [ -d "$venv/trl_clients" ]; then
  PYTHONPATH="$venv/trl_clients" "$venv/bin/python" -m pytest -q "$root/tests/interop/test_trl.py" --lockstep "$lockstep" --smollm2 "$venv/smollm2"
fi
