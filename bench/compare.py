"""Lockstep beside its CPU peers, on the same work in one run, into one record under bench/records/.

    bench/compare.py --lockstep build/release/lockstep --gemm build/bench/gemm_bench --model SMOLLM2 --venv VENV

VENV is what tools/interop/setup.sh VENV vllm smollm2 makes. Each part may be left out; the record holds what was run.
"""
import argparse
import json
import subprocess
import sys
import tempfile

from record import ROOT, write_record

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--gemm", help="gemm_bench of a LOCKSTEP_BENCH build")
parser.add_argument("--venv", help="virtual environment with torch, peft and vllm")
parser.add_argument("--skip-vllm", action="store_true")
options = parser.parse_args()
parts = {}


def run(name, command):
    print("==", " ".join(command), flush=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, "--json", file.name], check=True)
        parts[name] = json.load(open(file.name))


def ratio(ours, theirs):
    return round(ours / theirs, 3)


run("lockstep", [options.lockstep, "bench", "--hf-checkpoint", options.model])
if options.gemm:
    run("onednn", [options.gemm])
if options.venv:
    python = options.venv + "/bin/python"
    run("torch", [python, str(ROOT / "bench/peers/torch_step.py"), "--model", options.model])
    if not options.skip_vllm:
        run("vllm", [python, str(ROOT / "bench/peers/vllm_decode.py"), "--model", options.model, "--vllm",
                     options.venv + "/bin/vllm"])

ours = parts["lockstep"]["results"]
ratios = {}
if "onednn" in parts:
    ratios["gemm_over_onednn"] = parts["onednn"]["geometric_mean"]
if "torch" in parts:
    ratios["train_over_torch"] = ratio(ours["train_tok_s"], parts["torch"]["train_tok_s"])
    ratios["train_peak_over_torch"] = ratio(ours["train_peak_bytes"], parts["torch"]["train_peak_bytes"])
if "vllm" in parts:
    for name in ("decode_tok_s", "decode_lora_tok_s"):
        ratios[name.replace("_tok_s", "_over_vllm")] = {
            key: ratio(ours[name][key], rate) for key, rate in parts["vllm"][name].items()}
    ratios["publish_over_vllm_load"] = ours["publish_us"] / (1000 * parts["vllm"]["load_inplace_ms"])

print(json.dumps(ratios, indent=2))
print(write_record("cpu-peers", "bench/compare.py with " + ", ".join(parts), parts["lockstep"]["machine"],
                   {"commit": parts["lockstep"]["commit"], "ratios": ratios, "parts": parts}), file=sys.stderr)
