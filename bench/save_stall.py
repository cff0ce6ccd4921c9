"""What saving costs a step: bench/save_stall.py LOCKSTEP [--shape qwen3-0.6b]

One run of `lockstep sft` that saves every second step: steps during which a checkpoint is written stand between steps without
one, so that what else the machine does meets both. A step's time is from its line to the next one, so that what saving holds up is in
it, wherever it does; processor time is what the process had between the lines, all threads together. Each step with a checkpoint is
compared with the mean of its two neighbours; the median of these ratios is what `--save-interval 1` costs. The base has random values
and the rows random tokens; both lie in --folder, which is where the checkpoints go, too.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from random_rows import write_rows
from record import ROOT, write_record


def processor_seconds(pid):
    """User and system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def steps_of(command):
    """(seconds, processor seconds) of each step of a run but the first."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step "):
                lines.append((time.monotonic(), processor_seconds(process.pid)))
    if process.returncode:
        raise SystemExit(f"{command} failed: {process.returncode}")
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(lines, lines[1:])]


def ratios(values):
    """Of each step that a checkpoint was written in (the first in the list is none: it is step 2) to its neighbours."""
    return [values[i] / ((values[i - 1] + values[i + 1]) / 2) for i in range(1, len(values) - 1, 2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--shape", default="qwen3-0.6b", help="a folder of bench/shapes")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step")
    parser.add_argument("--tokens", type=int, default=256, help="of a row")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for the files; removed afterwards")
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    parser.add_argument("--commit", help="that the program was built from; without it: this checkout's")
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
        steps = steps_of([*train, "--save-interval", "2"])
        checkpoint = sum(path.stat().st_size for path in max(save.glob("iter_*")).glob("**/*") if path.is_file())
    finally:
        shutil.rmtree(options.folder)
    commit = options.commit or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True,
                                              text=True, check=True).stdout.strip()
    columns = dict(zip(("seconds", "processor_seconds"), zip(*steps)))
    results = {"checkpoint_bytes": checkpoint, "adapter_rank": options.rank, "tokens_per_step": options.rows * options.tokens,
               "load_average": round(os.getloadavg()[0], 2),
               "per_step": {name: round(statistics.median(values), 4) for name, values in columns.items()},
               "saving_over_not_saving": {name: round(statistics.median(ratios(values)), 4) for name, values in columns.items()},
               "ratios": {name: [round(ratio, 3) for ratio in ratios(values)] for name, values in columns.items()}}
    print(json.dumps(results))
    command = (f"bench/save_stall.py LOCKSTEP --shape {options.shape} --rank {options.rank} --rows {options.rows} "
               f"--tokens {options.tokens} --steps {options.steps} --device {options.device} --folder DIR")
    print(write_record(f"save-stall-{options.shape}", command, json.loads(options.machine),
                       {"commit": commit, "results": results}))


if __name__ == "__main__":
    main()
