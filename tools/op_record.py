#!/usr/bin/env python3
"""Writes a record of op_bench: one build, or an old and a new one that take turns.

    tools/op_record.py NAME [--part attention] [--rounds 3] [--commit HASH] OP_BENCH [OLD_OP_BENCH]

Each round runs both; a case has the least time of its rounds. Prints a table with the ratio.
"""
import argparse
import pathlib
import platform
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, write_record  # noqa: E402

LINE = re.compile(r"^(.*?)\s+([\d.]+) us\s+(\d+) % of (bandwidth|products)")
HEAD = re.compile(r"^(.*): (\d+) GFLOP/s .*, (\d+) GB/s \(read\)$")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("name")
parser.add_argument("--part", default="")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--commit", help="of the new build, where git is not")
parser.add_argument("builds", nargs="+", metavar="OP_BENCH")
options = parser.parse_args()
if len(options.builds) > 2:
    parser.error("one build, or a new and an old one")


def run(build):
    text = subprocess.run([build, options.part], capture_output=True, text=True, check=True).stdout.splitlines()
    head = HEAD.match(text[0])
    if not head:
        sys.exit(f"{build}: not the output of op_bench: {text[0]}")
    return head, {m[1]: (float(m[2]), int(m[3]), m[4]) for m in map(LINE.match, text[1:]) if m}


best = [{} for _ in options.builds]
limits = []
for _ in range(options.rounds):
    for build, cases in zip(options.builds, best):
        head, measured = run(build)
        limits.append((float(head[2]) / 1e3, float(head[3])))
        for name, case in measured.items():
            cases[name] = min(case, cases.get(name, case))

commit = options.commit or subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                                          check=True).stdout.strip()
results = []
for name, (us, percent, limit) in best[0].items():
    case = {"case": name, "us": us, "percent": percent, "of": limit}
    if len(best) == 2 and name in best[1]:
        case["old_us"] = best[1][name][0]
        print(f"{name:<58} {case['old_us']:>9.2f} -> {us:>9.2f} us  x{us / case['old_us']:.3f}")
    else:
        print(f"{name:<58} {us:>9.2f} us")
    results.append(case)
cpu = re.fullmatch(r"(.*), (\d+) threads", head[1])  # a CPU's instruction set is in its name
machine = {"cpu": cpu[1], "isa": platform.machine(), "threads": int(cpu[2])} if cpu else {"gpu": head[1]}
print(write_record(options.name, f"op_bench {options.part}".strip(), machine,
                   {"commit": commit, "rounds": options.rounds, "product_tflops": max(l[0] for l in limits),
                    "read_gb_s": max(l[1] for l in limits), "results": results}), file=sys.stderr)
