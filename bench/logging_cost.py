"""What telling about a run costs it: bench/logging_cost.py LOCKSTEP --machine JSON

Runs of the embedded model, with everything that a run can write about itself (samples, TensorBoard, W&B, trackio, and the dashboard with
a page open that follows it) and with metrics.jsonl alone, in turn, so that what else the machine does meets both. Compared is processor
time, all threads together, start and end of the program taken off by a run of one rollout.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import urllib.request

from record import ROOT, write_record

LOUD = ["--use-tensorboard", "--use-wandb", "--use-trackio", "--dashboard", "0"]
QUIET = ["--keep-samples", "0"]


def processor_seconds(lockstep, rollouts, flags):
    """User and system time of a run."""
    folder = pathlib.Path(tempfile.mkdtemp())
    command = [lockstep, "train", "--hf-checkpoint", ROOT / "models/arith", "--prompt-data", ROOT / "models/arith/train.jsonl", "--input-key", "prompt",
               "--label-key", "label", "--rm-type", "number", "--rollout-batch-size", 16, "--n-samples-per-prompt", 8,
               "--rollout-max-response-len", 16, "--lora-rank", 8, "--target-modules", "all-linear", "--lr", "1e-3", "--threads", 1,
               "--save", folder / "run", "--num-rollout", rollouts, *flags]
    try:
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith("dashboard "):
                page = urllib.request.urlopen(line.split()[-1] + "api/events")  # noqa: F841, a page that follows the run
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{command} failed: {status}")
        return used.ru_utime + used.ru_stime
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--rollouts", type=int, default=40)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    seconds = {"loud": [], "quiet": []}
    for _ in range(options.times):
        for name, flags in (("quiet", QUIET), ("loud", LOUD)):
            whole = processor_seconds(options.lockstep, options.rollouts + 1, flags)
            seconds[name].append((whole - processor_seconds(options.lockstep, 1, flags)) / options.rollouts)
    ratio = statistics.median(loud / quiet for loud, quiet in zip(seconds["loud"], seconds["quiet"]))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    results = {"what": "processor seconds of a rollout and its training: models/arith, 128 samples of up to 16 tokens", "load_average": round(os.getloadavg()[0], 2),
               "with_samples_reports_and_dashboard": [round(value, 5) for value in seconds["loud"]],
               "metrics_alone": [round(value, 5) for value in seconds["quiet"]], "ratio": round(ratio, 4)}
    print(json.dumps(results))
    print(write_record("logging-cost", f"bench/logging_cost.py LOCKSTEP --rollouts {options.rollouts} --times {options.times}",
                       json.loads(options.machine), {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
