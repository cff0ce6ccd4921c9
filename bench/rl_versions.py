"""The reinforcement-learning run of the embedded model by two builds of Lockstep, in turns, into one record under bench/records/.

    bench/rl_versions.py --before LOCKSTEP --after LOCKSTEP [--rounds 5] [--rollouts 10]

Each round runs both, the one that was second before first now. The record has the iteration times of every run (sampling, rewards, training, publishing; without
the first rollout, which warms up) and the ratio of their medians: below 1 the newer one is faster.
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
parser.add_argument("--names", nargs=2, default=["before", "after"], help="commits of the two, for the record")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--rollouts", type=int, default=10)
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()
model = ROOT / "models/arith"
binaries = {"before": options.before.resolve(), "after": options.after.resolve()}
times = {"before": [], "after": []}
samples = {"before": set(), "after": set()}
for number in range(options.rounds):
    for which in ("before", "after") if number % 2 == 0 else ("after", "before"):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([binaries[which], "train", "--hf-checkpoint", model, "--prompt-data", model / "train.jsonl", "--input-key", "prompt",
                            "--label-key", "label", "--rm-type", "number", "--threads", str(options.threads), "--num-rollout", str(options.rollouts),
                            "--rollout-batch-size", "16", "--n-samples-per-prompt", "8", "--rollout-max-response-len", "16", "--lora-rank", "8",
                            "--target-modules", "all-linear", "--lr", "1e-3", "--save", folder], check=True, capture_output=True)
            lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
        run = [sum(line[part] for part in ("rollout_ms", "reward_ms", "train_ms", "publish_ms")) for line in lines[1:]]
        times[which].append([round(t, 2) for t in run])
        samples[which].add(tuple(line["samples"] for line in lines))
        print(f"{which:6} {statistics.median(run):8.2f} ms a rollout", flush=True)
medians = {which: statistics.median(t for run in runs for t in run) for which, runs in times.items()}
info = pathlib.Path("/proc/cpuinfo").read_text()
cpu = next(line.split(": ", 1)[1] for line in info.splitlines() if line.startswith("model name"))
machine = {"cpu": cpu, "threads": options.threads, "isa": "avx512" if " avx512bw" in info else "avx2"}
print(write_record("rl-versions", f"bench/rl_versions.py --rounds {options.rounds} --rollouts {options.rollouts}", machine,
                   {"commits": dict(zip(("before", "after"), options.names)), "median_ms": medians, "after_over_before": round(medians["after"] / medians["before"], 4),
                    "same_samples": samples["before"] == samples["after"] and len(samples["after"]) == 1, "rollout_ms": times}))
