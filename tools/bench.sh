#!/usr/bin/env bash
# GEMM beside oneDNN (installs libdnnl-dev), then `lockstep bench`.   bench.sh build/release/lockstep [MODEL_DIR]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd); lockstep=${1:?usage: bench.sh LOCKSTEP [MODEL_DIR]}; model=${2:-$root/models/arith}
if ! dpkg-query -W -f='${Status}' libdnnl-dev 2>/dev/null | grep -q 'install ok installed'; then
  sudo=(); [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq; "${sudo[@]}" apt-get install -y -qq --no-install-recommends libdnnl-dev >/dev/null
fi
cmake -S "$root" -B "$root/build/bench" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_TESTS=OFF -DLOCKSTEP_BENCH=ON >/dev/null
cmake --build "$root/build/bench" --target gemm_bench
"$root/build/bench/gemm_bench"
"$lockstep" bench --hf-checkpoint "$model"
