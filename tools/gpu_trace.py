#!/usr/bin/env python3
"""What the GPU does while a command runs, by phase and kernel.

    tools/gpu_trace.py [--library build/cuda/bench/libcuda_trace.so] [--last 0.5] [--top 12] [--from KERNEL] [--record NAME] -- COMMAND...

Runs COMMAND with the library of bench/trace loaded by the CUDA driver and prints, for each phase (the innermost
ProfileRange of the host thread that launched the work: train/forward, rollout/decode, ...): the time the GPU worked for it,
the time it stood idle between two pieces of its work, the kernels with most of it, and the calls of the CUDA runtime that kept
the host for 20 us or more (waiting, allocating). `--last F` looks at the last
fraction F of the trace only, so that warm-up and kernel choice stay out. --from KERNEL also
prints each launch from one kernel of this name to the next one (decode_kernel: a layer of a decode step), for the sequences of launches
that come most often: how much later the GPU's work ends because of it, when it begins before (-) or after what was launched before has
ended, and how long it lasts. With programmatic dependent launch kernels overlap, so only the first of these adds up. --record NAME writes
bench/records/<gpu>/<date>-NAME.json, with the commit of this tree or, where git is not, of --commit. The trace costs time of the host: idle figures are upper bounds.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(command, library, out):
    environment = dict(os.environ, CUDA_INJECTION64_PATH=str(library), LOCKSTEP_TRACE_FILE=out)
    cupti = [line.split()[2] for line in subprocess.run(["ldd", library], capture_output=True, text=True).stdout.splitlines()
             if "libcupti" in line and "=> /" in line]
    if not cupti:
        sys.exit("gpu_trace: libcupti is not found; it comes with the CUDA toolkit (LD_LIBRARY_PATH)")
    environment["NVTX_INJECTION64_PATH"] = cupti[0]
    return subprocess.run(command, env=environment).returncode


def short(name):
    """A kernel's name without its namespace, return type and parameters; of a mangled one, its longest identifier."""
    if name.startswith("_Z"):
        words = re.findall(r"\d+([A-Za-z_][A-Za-z0-9_]*)", name)
        plain = subprocess.run(["c++filt", name], capture_output=True, text=True).stdout.strip() if words else ""
        name = plain or max(words, key=len, default=name)
    name = re.sub(r"\(anonymous namespace\)::|lockstep::kernels::|cuda::|^void ", "", name)
    return name.split("(")[0][:70]


def read(path):
    rows, names = [], {}
    with open(path) as file:
        for line in file:
            start, end, phase, name = line.rstrip("\n").split("\t")
            if name not in names:
                names[name] = name if name.startswith("host ") else short(name)
            rows.append((int(start), int(end), phase or "(no range)", names[name]))
    return rows


def summarise(rows):
    """Busy and idle nanoseconds and kernels of each phase. Work that overlaps counts once as busy, to its own phase."""
    phases = {}
    reach = rows[0][0]
    last_phase = None
    for start, end, phase, name in rows:
        p = phases.setdefault(phase, {"busy": 0, "idle": 0, "launches": 0, "kernels": collections.Counter(),
                                      "counts": collections.Counter(), "host": collections.Counter()})
        if name.startswith("host "):
            p["host"][name] += end - start
            p["counts"][name] += 1
            continue
        if start > reach and phase == last_phase:
            p["idle"] += start - reach
        p["busy"] += max(0, end - max(start, reach))
        p["launches"] += 1
        p["kernels"][name] += end - start
        p["counts"][name] += 1
        reach = max(reach, end)
        last_phase = phase
    return phases, reach - rows[0][0]


def chains(rows, kernel):
    """The launches from one of `kernel` to the next: [(names, how often, [(adds, begins, lasts) mean ns of each])], most time first."""
    found = collections.defaultdict(list)
    current, reach = None, rows[0][0]
    for start, end, phase, name in rows:
        if name.startswith("host "):
            continue
        if kernel in name:
            if current:
                found[tuple(launch[0] for launch in current)].append([launch[1:] for launch in current])
            current = []
        if current is not None:
            current.append((f"{phase}  {name}", max(0, end - reach), start - reach, end - start))
        reach = max(reach, end)
    result = []
    for names, times in found.items():
        result.append((names, len(times), [tuple(sum(each) / len(times) for each in zip(*launch)) for launch in zip(*times)]))
    return sorted(result, key=lambda chain: -chain[1] * sum(launch[0] for launch in chain[2]))


def described_commit():
    try:
        described = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                                   capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return described.stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/cuda/bench/libcuda_trace.so"))
    parser.add_argument("--last", type=float, default=0.5)
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--from", dest="kernel")
    parser.add_argument("--record")
    parser.add_argument("--commit", help="what was built; default: what git says of this tree")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("which command?")
    commit = arguments.commit or described_commit()
    if arguments.record and not commit:
        parser.error("a record names the commit that was measured, and git does not know it here: --commit")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "trace.tsv")
        code = run(command, arguments.library, out)
        if not os.path.exists(out) or os.path.getsize(out) == 0:
            sys.exit(f"gpu_trace: no trace was written (the command ended with {code}); is there a GPU?")
        rows = read(out)
    begin, end = rows[0][0], max(row[1] for row in rows)
    rows = [row for row in rows if row[0] >= end - arguments.last * (end - begin)]
    phases, span = summarise(rows)
    result = []
    for phase, p in sorted(phases.items(), key=lambda item: -item[1]["busy"]):
        total = sum(p["kernels"].values()) or 1
        print(f"{phase}: busy {p['busy'] / 1e6:.2f} ms ({100 * p['busy'] / span:.1f} % of the time looked at), "
              f"idle within {p['idle'] / 1e6:.2f} ms, {p['launches']} launches")
        kernels = []
        for name, ns in p["kernels"].most_common(arguments.top):
            count = p["counts"][name]
            print(f"  {100 * ns / total:5.1f} %  {ns / 1e6:9.3f} ms  {count:7d} x {ns / count / 1e3:8.2f} us  {name}")
            kernels.append({"name": name, "ms": round(ns / 1e6, 3), "count": count, "mean_us": round(ns / count / 1e3, 2)})
        host = []
        for name, ns in p["host"].most_common(arguments.top):
            count = p["counts"][name]
            print(f"          {ns / 1e6:9.3f} ms  {count:7d} x {ns / count / 1e3:8.2f} us  {name}")
            host.append({"call": name.removeprefix("host "), "ms": round(ns / 1e6, 3), "count": count})
        result.append({"phase": phase, "busy_ms": round(p["busy"] / 1e6, 3), "idle_ms": round(p["idle"] / 1e6, 3),
                       "launches": p["launches"], "kernels": kernels, "long_host_calls": host})
    for names, count, launches in chains(rows, arguments.kernel)[:2] if arguments.kernel else []:
        print(f"{count} times, {sum(launch[0] for launch in launches) / 1e3:.2f} us:")
        for name, (adds, begins, lasts) in zip(names, launches):
            print(f"  adds {adds / 1e3:6.2f} us  begins {begins / 1e3:+7.2f}  lasts {lasts / 1e3:6.2f}  {name}")
    if arguments.record:
        sys.path.insert(0, str(ROOT / "bench"))
        from record import write_record
        gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
        machine = {"gpu": gpu.stdout.strip().splitlines()[0]}
        content = {"commit": commit, "traced": shlex.join(command), "span_ms": round(span / 1e6, 3), "last": arguments.last, "phases": result}
        print(write_record(arguments.record, shlex.join(["tools/gpu_trace.py", *sys.argv[1:]]), machine, content))
    return code


if __name__ == "__main__":
    sys.exit(main())
