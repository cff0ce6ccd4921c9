"""What writing about a run costs it: bench/logging_cost.py LOCKSTEP --machine JSON

Two runs of the embedded model, one with what every run writes (metrics.jsonl and samples), one with all that a run can write: TensorBoard,
W&B, trackio, and the dashboard with a page open that follows it. `perf record` notes what the processor does every 0.4 ms of its time, in
all threads; the cost is the share of the notes that were taken anywhere below the functions that write. (The times of two runs, with and
without, differ by 2 to 4 % from one time to the next, which is more than what is looked for.) Needs Linux's perf.
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

RUNS = {"metrics_and_samples": [], "with_reports_and_dashboard": ["--use-tensorboard", "--use-wandb", "--use-trackio", "--dashboard", "0"]}
# What a stack has in it that writes: metrics.jsonl and the reports; samples; the page.
WRITERS = {"metrics_and_reports": ("RlRun::log",), "samples": ("RolloutSamples::",), "dashboard": ("_State_impl", "server::with_dashboard")}


def recorded(options, flags, folder):
    """The stacks of one run, each a list of function names."""
    data = folder / "perf.data"
    command = ["perf", "record", "-F", 2500, "--call-graph", "dwarf,16384", "-o", data, options.lockstep, "train", "--hf-checkpoint", ROOT / "models/arith",
               "--prompt-data", ROOT / "models/arith/train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "number",
               "--rollout-batch-size", 16, "--n-samples-per-prompt", 8, "--rollout-max-response-len", 16, "--lora-rank", 8, "--target-modules",
               "all-linear", "--lr", "1e-3", "--threads", 1, "--save", folder / "run", "--num-rollout", options.rollouts, *flags]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        pages = [urllib.request.urlopen(line.split()[-1] + "api/events") for line in process.stdout if line.startswith("dashboard ")]
    if process.returncode or len(pages) != flags.count("--dashboard"):
        raise SystemExit(f"{command} failed: {process.returncode}")
    script = subprocess.Popen(["perf", "script", "-i", data, "--no-inline", "-F", "ip,sym"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack = []
    for line in script.stdout:
        if line.strip():
            stack.append(line)
        elif stack:
            yield stack
            stack = []


def shares(options, flags):
    counts, notes = dict.fromkeys(WRITERS, 0), 0
    with tempfile.TemporaryDirectory() as folder:
        for stack in recorded(options, flags, pathlib.Path(folder)):
            notes += 1
            for name, functions in WRITERS.items():
                if any(all(function in frame for function in functions) for frame in stack):
                    counts[name] += 1
                    break
    return {"notes": notes, **{name: round(count / notes, 5) for name, count in counts.items()}, "share": round(sum(counts.values()) / notes, 5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--rollouts", type=int, default=41)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    runs = {name: [shares(options, flags) for _ in range(options.times)] for name, flags in RUNS.items()}
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    results = {"what": "share of the processor time of a run: models/arith, rollouts of 128 samples of up to 16 tokens",
               "load_average": round(os.getloadavg()[0], 2),
               "share": {name: round(statistics.median(run["share"] for run in of), 5) for name, of in runs.items()}, "runs": runs}
    print(json.dumps(results))
    print(write_record("logging-cost", f"bench/logging_cost.py LOCKSTEP --rollouts {options.rollouts} --times {options.times}",
                       json.loads(options.machine), {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
