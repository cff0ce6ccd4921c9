#!/usr/bin/env python3
"""The embedded run of two binaries in turn: is the second as fast as the first?

    bench/embedded_speed.py --before OLD/lockstep --after build/release/lockstep [--rounds 5] [--rollouts 20]

Both train the same rollouts of `make demo` (GRPO of the embedded model); each round runs one, then the other, first the one that was last
before. Writes one record under bench/records/ with the milliseconds of sampling and training of every run and the ratio of the medians.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from record import ROOT, write_record

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--before", required=True, type=pathlib.Path)
parser.add_argument("--after", required=True, type=pathlib.Path)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--rollouts", type=int, default=20)
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()
model = ROOT / "models/arith"
flags = ["--input-key", "prompt", "--label-key", "label", "--rm-type", "number", "--num-rollout", str(options.rollouts),
         "--rollout-batch-size", "32", "--n-samples-per-prompt", "8", "--rollout-max-response-len", "24", "--rollout-shuffle",
         "--lora-rank", "8", "--target-modules", "all-linear", "--lr", "2e-3", "--threads", str(options.threads), "--device", "cpu"]


def run(binary):
    """Sums over the rollouts, and what was sampled."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([binary.resolve(), "train", "--hf-checkpoint", model, "--prompt-data", model / "train.jsonl", *flags, "--save", work],
                       check=True, capture_output=True)
        lines = [json.loads(line) for line in (pathlib.Path(work) / "metrics.jsonl").read_text().splitlines()]
    return {"rollout_ms": sum(line["rollout_ms"] + line["reward_ms"] for line in lines), "train_ms": sum(line["train_ms"] for line in lines)}, \
        [line["samples"] for line in lines]


runs = {"before": [], "after": []}
sampled = {}
for round_ in range(options.rounds):
    for name in ("before", "after") if round_ % 2 == 0 else ("after", "before"):
        times, samples = run(getattr(options, name))
        runs[name].append(times)
        assert sampled.setdefault(name, samples) == samples, "a binary sampled something else the second time"
        print(name, times, flush=True)
about = {}
for name in runs:
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "bench.json"
        subprocess.run([getattr(options, name).resolve(), "bench", "--hf-checkpoint", model, "--device", "cpu", "--threads", str(options.threads),
                        "--decode-batch", "1", "--new-tokens", "8", "--json", path], check=True, capture_output=True)
        about[name] = json.loads(path.read_text())
median = {name: statistics.median(t["rollout_ms"] + t["train_ms"] for t in times) for name, times in runs.items()}
print(write_record("embedded-speed", f"bench/embedded_speed.py --rounds {options.rounds} --rollouts {options.rollouts} --threads {options.threads}",
                   about["after"]["machine"], {"commit": about["after"]["commit"], "before": about["before"]["commit"], "flags": " ".join(flags),
                                              "same_samples": sampled["before"] == sampled["after"], "runs": runs, "median_ms": median,
                                              "after_over_before": round(median["after"] / median["before"], 4)}))
