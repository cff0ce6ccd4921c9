"""What writing about a run costs it: bench/logging_cost.py LOCKSTEP --machine JSON

A run of the embedded model with everything that it can write about itself (metrics.jsonl, samples, TensorBoard, W&B, trackio, and the
dashboard with a page open that follows it), under `perf record`, which notes what the processor does every 0.4 ms of its time, in all
threads. The cost is the share of the notes that were taken anywhere below the functions that write. Two runs with and without all that
differ by more from one time to the next (2 to 4 %) than by what is looked for. Needs Linux's perf.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import urllib.request

from record import ROOT, write_record

FLAGS = ["--use-tensorboard", "--use-wandb", "--use-trackio", "--dashboard", "0"]
# Metrics and reports; samples on the training thread, and on their own; the dashboard's thread.
WRITERS = {"metrics_and_reports": "RlRun::log", "samples": "RolloutSamples::", "dashboard": "server::with_dashboard"}
LOOP = "RlRun::iterations"


def recorded(options, folder):
    """The stacks of one run, each a list of function names."""
    data = folder / "perf.data"
    command = ["perf", "record", "-F", 2500, "--call-graph", "dwarf,16384", "-o", data, options.lockstep, "train", "--hf-checkpoint", ROOT / "models/arith",
               "--prompt-data", ROOT / "models/arith/train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "number",
               "--rollout-batch-size", 16, "--n-samples-per-prompt", 8, "--rollout-max-response-len", 16, "--lora-rank", 8, "--target-modules",
               "all-linear", "--lr", "1e-3", "--threads", 1, "--save", folder / "run", "--num-rollout", options.rollouts, *FLAGS]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        pages = [urllib.request.urlopen(line.split()[-1] + "api/events") for line in process.stdout if line.startswith("dashboard ")]
    if process.returncode or not pages:
        raise SystemExit(f"{command} failed: {process.returncode}")
    script = subprocess.Popen(["perf", "script", "-i", data, "--no-inline", "-F", "ip,sym"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack = []
    for line in script.stdout:
        if line.strip():
            stack.append(line)
        elif stack:
            yield stack
            stack = []


def shares(options):
    counts = dict.fromkeys(WRITERS, 0)
    of_the_run = 0
    with tempfile.TemporaryDirectory() as folder:
        for stack in recorded(options, pathlib.Path(folder)):
            writer = next((name for name, function in WRITERS.items() if any(function in frame for frame in stack)), None)
            if writer:
                counts[writer] += 1
            of_the_run += writer is not None or any(LOOP in frame for frame in stack)
    return {"notes": of_the_run, **{name: round(count / of_the_run, 5) for name, count in counts.items()},
            "share": round(sum(counts.values()) / of_the_run, 5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--rollouts", type=int, default=41)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    runs = [shares(options) for _ in range(options.times)]
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    results = {"what": "share of a rollout's and its training's processor time: models/arith, 128 samples of up to 16 tokens",
               "load_average": round(os.getloadavg()[0], 2), "share": round(statistics.median(run["share"] for run in runs), 5), "runs": runs}
    print(json.dumps(results))
    print(write_record("logging-cost", f"bench/logging_cost.py LOCKSTEP --rollouts {options.rollouts} --times {options.times}",
                       json.loads(options.machine), {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
