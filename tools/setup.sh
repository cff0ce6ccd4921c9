#!/usr/bin/env bash
# Installs the distribution packages the build needs (docs/dependencies.md) and those named as arguments; does nothing
# when all are there.   setup.sh [PACKAGE...]
set -euo pipefail
packages=(g++ cmake ninja-build ccache pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev libssl-dev
          libpcre2-dev libyaml-dev libthrift-dev libboost-dev libsnappy-dev libzstd-dev zlib1g-dev liblzma-dev libeigen3-dev libgtest-dev "$@")
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
command -v apt-get >/dev/null || { echo "setup: no apt-get here; install: ${missing[*]}" >&2; exit 1; }
sudo=(); [ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "setup: installing ${missing[*]}"
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
