"""Lockstep beside its CPU peers, on the same work in one run, into one record under bench/records/.

    bench/compare.py --lockstep build/release/lockstep --gemm build/bench/gemm_bench --model SMOLLM2 --venv VENV
    bench/compare.py --lockstep build/release/lockstep --model SMOLLM2 --venv VENV --training-rounds 8

VENV is what tools/interop/setup.sh VENV vllm smollm2 makes. Each part may be left out; the record holds what was run.
With --training-rounds only LoRA steps are measured, Lockstep's and PyTorch's in turn, and the record's ratios are of
medians: for machines whose speed varies.
"""
import argparse
import json
import statistics
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
parser.add_argument("--training-rounds", type=int, default=0, help="LoRA steps only, ours and PyTorch's in turn, so often")
options = parser.parse_args()
if options.training_rounds < 0 or options.training_rounds and not options.venv:
    parser.error("--training-rounds takes a number of rounds above 0, and --venv for PyTorch")
parts = {}


def measured(command):
    print("==", " ".join(command), flush=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, "--json", file.name], check=True)
        return json.load(open(file.name))


def run(name, command):
    parts[name] = measured(command)


def ratio(ours, theirs):
    return round(ours / theirs, 3)


def torch_step():
    return [options.venv + "/bin/python", str(ROOT / "bench/peers/torch_step.py"), "--model", options.model]


def compare_training():
    ours, theirs = [], []
    for _ in range(options.training_rounds):
        ours.append(measured([options.lockstep, "bench", "--hf-checkpoint", options.model, "--only", "gemm,train"]))
        theirs.append(measured(torch_step()))
    field = "train_tok_s"
    rates = [one["results"][field] for one in ours], [one[field] for one in theirs]
    medians = [statistics.median(rate) for rate in rates]
    of_limit = [one["results"][field + "_percent_of_limit"] for one in ours]
    ratios = {"train_over_torch": ratio(*medians), "train_percent_of_limit": statistics.median(of_limit)}
    print(json.dumps({"lockstep": rates[0], "torch": rates[1], **ratios}, indent=2))
    print(write_record("cpu-training-in-turn", f"bench/compare.py --training-rounds {options.training_rounds}",
                       ours[0]["machine"], {"commit": ours[0]["commit"], "ratios": ratios,
                                            "parts": {"lockstep": ours, "torch": theirs}}), file=sys.stderr)


if options.training_rounds:
    compare_training()
    sys.exit()
run("lockstep", [options.lockstep, "bench", "--hf-checkpoint", options.model])
if options.gemm:
    run("onednn", [options.gemm])
if options.venv:
    run("torch", torch_step())
    if not options.skip_vllm:
        run("vllm", [options.venv + "/bin/python", str(ROOT / "bench/peers/vllm_decode.py"), "--model", options.model, "--vllm",
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
