"""The embedded model on GSM8K: training and held-out loss of `lockstep sft`.

    bench/sft_embedded_gsm8k.py --lockstep build/release/lockstep --gsm8k DIR [--steps 160]

DIR has train.jsonl.xz and test.jsonl.xz with rows {question, answer}. Fails unless both losses fall. Writes one record under
bench/records/.
"""
import argparse
import json
import lzma
import pathlib
import subprocess
import tempfile

from record import ROOT, write_record

TRAIN_ROWS, HELD_OUT_ROWS = 1200, 100

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--gsm8k", required=True, type=pathlib.Path)
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--threads", type=int, default=0)
options = parser.parse_args()
work = pathlib.Path(tempfile.mkdtemp())


def rows(name, count):
    with lzma.open(options.gsm8k / f"{name}.jsonl.xz", "rt") as f:
        chosen = [json.loads(line) for _, line in zip(range(count), f)]
    path = work / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"prompt": r["question"] + "\n", "completion": r["answer"]}) + "\n" for r in chosen))
    return path


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    name = next(line.split(": ", 1)[1] for line in info.splitlines() if line.startswith("model name"))
    isa = "avx512" if " avx512bw" in info else "avx2"
    return {"cpu": name, "threads": info.count("processor\t:"), "isa": isa}


flags = ["--lora-rank", "16", "--target-modules", "all-linear", "--lr", "2e-3", "--lr-decay-style", "linear",
         "--global-batch-size", "16", "--max-seq-length", "384", "--eval-interval", "20", "--rollout-shuffle",
         "--num-rollout", str(options.steps)]
subprocess.run([options.lockstep, "sft", "--hf-checkpoint", ROOT / "models/arith", "--prompt-data", rows("train", TRAIN_ROWS),
                "--eval-prompt-data", "held_out", rows("test", HELD_OUT_ROWS), "--threads", str(options.threads),
                "--save", work / "run", *flags], check=True)
lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
train = [line["loss"] for line in lines if "eval" not in line]
held_out = [{"step": line["step"], "loss": line["loss"]} for line in lines if "eval" in line]
assert sum(train[-10:]) < sum(train[:10]) and held_out[-1]["loss"] < held_out[0]["loss"]
commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                        capture_output=True, text=True).stdout.strip()
print(write_record("sft-embedded-gsm8k", "lockstep sft --hf-checkpoint models/arith " + " ".join(flags), machine(),
                   {"commit": commit, "rows": [TRAIN_ROWS, HELD_OUT_ROWS], "train_loss": train, "held_out": held_out}))
