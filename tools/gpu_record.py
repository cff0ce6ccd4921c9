#!/usr/bin/env python3
"""Joins records of one GPU into one under bench/records/<gpu>/: `lockstep bench --json` and bench/peers/gpu_sft.py.

    tools/gpu_record.py --lockstep bench-0.6b.json --peer eager.json compile.json [--name qwen3-0.6b]
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from record import write_record  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--peer", nargs="*", default=[])
parser.add_argument("--name", help="of the record (the model's name)")
options = parser.parse_args()


def read(path):
    return json.loads(pathlib.Path(path).read_text())


ours = read(options.lockstep)
parts, ratios = {"lockstep": ours}, {}
if "gpu" not in ours["machine"]:
    sys.exit(f"{options.lockstep}: not a record of a GPU")
for path in options.peer:
    peer = read(path)
    for field, wanted in (("gpu", ours["machine"]["gpu"]), ("model", ours["model"]["name"])):
        if peer[field] != wanted:
            sys.exit(f"{path}: {field} is {peer[field]}, and {options.lockstep} has {wanted}")
    for field in ("batch_size", "seq_length", "lora_rank"):
        if peer["batch"][field] != ours["batch"][field]:
            sys.exit(f"{path}: {field} is {peer['batch'][field]}, and {options.lockstep} has {ours['batch'][field]}")
    parts[f"peft_{peer['mode']}"] = peer
    if peer["train_tok_s"] and "train_tok_s" in ours["results"]:
        name = f"train_over_peft_{peer['mode']}"
        ratios[name] = round(ours["results"]["train_tok_s"] / peer["train_tok_s"], 3)
        ratios[f"train_peak_over_peft_{peer['mode']}"] = round(
            ours["results"]["train_peak_bytes"] / peer["train_peak_bytes"], 3)

print(json.dumps(ratios, indent=2))
print(write_record(options.name or ours["model"]["name"], ours["command"], ours["machine"],
                   {"commit": ours["commit"], "ratios": ratios, "parts": parts}), file=sys.stderr)
