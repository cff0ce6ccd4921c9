"""Two ranks of one thread against one process of two: bench/cpu_ranks.py LOCKSTEP MODEL --folder DIR --machine JSON

Runs `lockstep sft` on the CPU by turns, as one process with two threads and as `lockstep launch -n 2` with one each, over the same
rows of random tokens of one length, so that no rank waits for a longer sample. A step's time is what metrics.jsonl says; the first of a
run is left out. The ratio is that of the medians: above 1 the ranks are faster. Adapters are compared byte for byte.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess

from random_rows import write_rows
from record import ROOT, write_record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step")
    parser.add_argument("--tokens", type=int, default=128, help="of a row")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for the files; removed afterwards")
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    options.folder.mkdir(parents=True)
    times, adapters = {"alone": [], "ranks": []}, set()
    try:
        rows = options.folder / "rows.jsonl"
        write_rows(rows, options.rows * options.steps, options.tokens, vocabulary)
        for number in range(options.rounds):
            for name, launch, threads in (("alone", [], 2), ("ranks", ["launch", "-n", "2"], 1)):
                save = options.folder / f"{name}{number}"
                command = [options.lockstep, *launch, "sft", "--hf-checkpoint", options.model, "--prompt-data", rows, "--lora-rank",
                           str(options.rank), "--target-modules", "all-linear", "--lr", "1e-5", "--global-batch-size", str(options.rows),
                           "--device", "cpu", "--threads", str(threads), "--save", save]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                lines = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
                times[name] += [line["train_ms"] / 1000 for line in lines[1:]]
                adapters.add(max(save.glob("iter_*/lora_adapter/adapter_model.safetensors")).read_bytes())
    finally:
        shutil.rmtree(options.folder)
    if len(adapters) != 1:
        raise SystemExit("the adapters are not the same bytes")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    results = {"model": options.model.name, "adapter_rank": options.rank, "tokens_per_step": options.rows * options.tokens,
               "load_average": round(os.getloadavg()[0], 2), "seconds_per_step": {name: round(value, 4) for name, value in medians.items()},
               "two_ranks_over_two_threads": round(medians["alone"] / medians["ranks"], 4),
               "steps": {name: [round(value, 3) for value in values] for name, values in times.items()}}
    print(json.dumps(results))
    command = (f"bench/cpu_ranks.py LOCKSTEP MODEL --rank {options.rank} --rows {options.rows} --tokens {options.tokens} "
               f"--steps {options.steps} --rounds {options.rounds} --folder DIR")
    print(write_record(f"cpu-ranks-{options.model.name}", command, json.loads(options.machine),
                       {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
