"""What 256 rewards by `--rm-type command` cost beyond the program's own time: the time from its first request to its last
answer, less what it spent between reading a request and having written its answer.

    python3 bench/reward_command.py build/release/lockstep
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from record import ROOT, write_record

REWARDS, RUNS = 256, 5
PROGRAM = """
import json, sys, time
begin = busy = 0.0
for line in sys.stdin:
    at = time.perf_counter()
    begin = begin or at
    request = json.loads(line)
    print(json.dumps({"id": request["id"], "reward": float(len(request["response"]))}), flush=True)
    end = time.perf_counter()
    busy += end - at
open(sys.argv[1], "w").write(json.dumps({"span_ms": 1000 * (end - begin), "program_ms": 1000 * busy}))
"""


def measure(binary, folder):
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"label": "7", "completion": "x" * (1000 + i)}) + "\n" for i in range(REWARDS)))
    (folder / "program.py").write_text(PROGRAM)
    times = folder / "times.json"
    command = [binary, "reward", "--rm-type", "command", "--reward-workers", "1", "--input", str(rows), "--output",
               str(folder / "graded.jsonl"), "--reward-command", f"python3 {folder / 'program.py'} {times}"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"mean of {REWARDS} rows" in out, out
    result = json.loads(times.read_text())
    return {**result, "cost_ms": result["span_ms"] - result["program_ms"]}


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(binary, pathlib.Path(folder)) for _ in range(RUNS)]
    runs.sort(key=lambda run: run["cost_ms"])
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    machine = {"cpu": cpu, "threads": os.cpu_count(), "isa": "any", "load": os.getloadavg()[0]}
    result = {"rewards": REWARDS, "bytes_of_a_response": 1000, "runs": runs, "median_cost_ms": runs[RUNS // 2]["cost_ms"]}
    print(json.dumps(result, indent=2))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    print(write_record("reward-command", " ".join(["python3", *sys.argv]), machine,
                       {"commit": commit.stdout.strip(), "results": result}))


main()
