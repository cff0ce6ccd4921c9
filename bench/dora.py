"""What DoRA costs a training step, here and in PEFT: bench/dora.py --lockstep BINARY --model DIR --venv VENV

`lockstep bench --only dora` and bench/peers/torch_dora.py in turn, on the same model with the same shapes and threads; each
alternates steps of LoRA and of DoRA. The medians of the rounds go into a record.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from record import ROOT, write_record

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--model", required=True, type=pathlib.Path)
parser.add_argument("--venv", required=True, help="virtual environment with torch and peft")
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--seq-length", type=int, default=256)
parser.add_argument("--lora-rank", type=int, default=16)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()
shape = ["--batch-size", str(options.batch_size), "--seq-length", str(options.seq_length), "--lora-rank",
         str(options.lora_rank), "--threads", str(options.threads)]


def run(command):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, *shape, "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


rounds = {"lockstep": [], "peft": []}
for _ in range(options.rounds):
    ours = run([options.lockstep, "bench", "--hf-checkpoint", str(options.model), "--only", "dora"])
    rounds["lockstep"].append(ours["results"])
    rounds["peft"].append(run([options.venv + "/bin/python", str(ROOT / "bench/peers/torch_dora.py"), "--model",
                               str(options.model)]))
results = {name: {key: round(statistics.median(run[key] for run in runs), 3)
                  for key in ("lora_step_ms", "dora_step_ms", "dora_over_lora")} for name, runs in rounds.items()}
results["model"] = options.model.name
results["load_average"] = os.getloadavg()[0]
results["versions"] = rounds["peft"][-1]["versions"]
print(json.dumps(results, indent=2))
commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
print(write_record(f"dora-{options.model.name}", "bench/dora.py --lockstep LOCKSTEP --model MODEL --venv VENV " + " ".join(shape),
                   ours["machine"], {"commit": commit.stdout.strip(), "results": results}))
