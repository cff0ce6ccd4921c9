"""What saving after every step costs a run: bench/save_stall.py LOCKSTEP [--shape qwen3-0.6b]

Runs of `lockstep sft` that save every step and that save after the last only, in turn. A step's time is from its line to the next one,
so that what saving holds up is in it, wherever it does; the median over all steps of each kind but the first. The base has random
values and the rows random tokens; both lie in --folder, which is where the checkpoints go, too.
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

from record import ROOT, write_record


def write_rows(file, rows, tokens, vocabulary):
    generator = random.Random(1)
    with open(file, "w") as out:
        for _ in range(rows):
            row = [generator.randrange(vocabulary) for _ in range(tokens)]
            out.write(json.dumps({"tokens": row, "loss_mask": [0] + [1] * (tokens - 1)}) + "\n")


def step_seconds(command):
    """Seconds between the lines of a run's steps."""
    times = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step "):
                times.append(time.monotonic())
    if process.returncode:
        raise SystemExit(f"{command} failed: {process.returncode}")
    return [b - a for a, b in zip(times, times[1:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--shape", default="qwen3-0.6b", help="a folder of bench/shapes")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step")
    parser.add_argument("--tokens", type=int, default=256, help="of a row")
    parser.add_argument("--steps", type=int, default=6, help="of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for the files; removed afterwards")
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    config_file = ROOT / "bench/shapes" / options.shape / "config.json"
    base, rows, save = (options.folder / name for name in ("base", "rows.jsonl", "save"))
    options.folder.mkdir(parents=True)
    try:
        subprocess.run([sys.executable, ROOT / "tools/dummy_checkpoint.py", config_file, base], check=True)
        write_rows(rows, options.rows * options.steps, options.tokens, json.loads(config_file.read_text())["vocab_size"])
        train = [options.lockstep, "sft", "--hf-checkpoint", base, "--prompt-data", rows, "--lora-rank", str(options.rank),
                 "--target-modules", "all-linear", "--lr", "1e-5", "--global-batch-size", str(options.rows), "--device", options.device,
                 "--save", save]
        kinds = {"every_step": ["--save-interval", "1"], "last_step": []}
        seconds = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind, flags in kinds.items():
                shutil.rmtree(save, ignore_errors=True)
                seconds[kind] += step_seconds([*train, *flags])
        checkpoint = sum(path.stat().st_size for path in save.glob("iter_*/**/*") if path.is_file())
    finally:
        shutil.rmtree(options.folder)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    results = {"checkpoint_bytes": checkpoint, "adapter_rank": options.rank, "tokens_per_step": options.rows * options.tokens,
               "seconds_per_step": {kind: round(value, 4) for kind, value in medians.items()},
               "saving_over_not_saving": round(medians["every_step"] / medians["last_step"], 4)}
    print(json.dumps(results))
    command = (f"bench/save_stall.py LOCKSTEP --shape {options.shape} --rank {options.rank} --rows {options.rows} "
               f"--tokens {options.tokens} --steps {options.steps} --rounds {options.rounds} --device {options.device} --folder DIR")
    print(write_record(f"save-stall-{options.shape}", command, json.loads(options.machine),
                       {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
