#!/usr/bin/env python3
"""CPU-seconds of a build from nothing, by target.

    tools/build_times.py [--target lockstep] [--cuda] [--record NAME] [--folder build/times]

Configures and builds `--target` (default: everything) in a folder of its own without ccache, and prints for each target
what its compilers and linkers took (user and system time), with the number of them and the wall time of the whole.
--record NAME also writes bench/records/<machine>/<date>-NAME.json. As `build_times.py --launch LOG COMMAND...` it is the
launcher that CMake puts in front of every compiler and linker.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def launch(log, command):
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    target = "?"
    for word in command:
        if found := re.search(r"CMakeFiles/([^/]+)\.dir/", word):
            target = found.group(1)
            break
    language = "CUDA" if any(word.endswith(".cu") for word in command) else "C++"
    if not any(word == "-c" for word in command):
        language = "link"
    with open(log, "a") as out:  # one short line: appended in one piece
        out.write(f"{target}\t{language}\t{usage.ru_utime + usage.ru_stime:.3f}\n")
    return os.waitstatus_to_exitcode(status)


def build(folder, target, cuda, jobs):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder / "seconds.tsv"
    launcher = f"{sys.executable};{pathlib.Path(__file__).resolve()};--launch;{log}"
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 f"-DLOCKSTEP_CUDA={'ON' if cuda else 'OFF'}"]
    configure += [f"-DCMAKE_{kind}_LAUNCHER={launcher}" for kind in ("CXX_COMPILER", "CUDA_COMPILER", "CXX_LINKER")]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    begin = time.time()
    command = ["cmake", "--build", str(folder), "-j", str(jobs)] + (["--target", target] if target else [])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.time() - begin, log


def table(log):
    seconds, count = collections.Counter(), collections.Counter()
    for line in log.read_text().splitlines():
        target, language, took = line.split("\t")
        name = f"{target} (CUDA)" if language == "CUDA" else target
        seconds[name] += float(took)
        count[name] += 1
    return [{"target": name, "cpu_seconds": round(took, 1), "commands": count[name]} for name, took in seconds.most_common()]


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", text).group(1)
    isa = "avx512" if " avx512f " in text else "avx2"
    return {"cpu": name, "threads": len(os.sched_getaffinity(0)), "isa": isa}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="", help="default: everything")
    parser.add_argument("--cuda", action="store_true", help="with the GPU code (needs nvcc)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/times")
    parser.add_argument("--record", help="also write a record of this name")
    arguments = parser.parse_args()
    wall, log = build(arguments.folder.resolve(), arguments.target, arguments.cuda, arguments.jobs)
    rows = table(log)
    total = sum(row["cpu_seconds"] for row in rows)
    for row in rows:
        print(f"{row['cpu_seconds']:8.1f} s  {row['commands']:4d}  {row['target']}")
    print(f"{total:8.1f} s of CPU, {wall:.0f} s by the clock with {arguments.jobs} at once")
    if arguments.record:
        sys.path.insert(0, str(ROOT / "bench"))
        from record import write_record
        compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
        commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        content = {"commit": commit, "compiler": compiler, "target": arguments.target or "all", "cuda": arguments.cuda,
                   "wall_s": round(wall, 1), "cpu_s": round(total, 1), "targets": rows}
        print(write_record(arguments.record, shlex.join(["tools/build_times.py", *sys.argv[1:]]), machine(), content))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--launch":
        sys.exit(launch(sys.argv[2], sys.argv[3:]))
    main()
