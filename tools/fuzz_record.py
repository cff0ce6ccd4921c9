"""Reads the logs of tools/fuzz.sh and writes the record; fails if a target failed: fuzz_record.py BUILD SECONDS TARGET..."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, write_record  # noqa: E402

build, seconds, names = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def target(name):
    log = (build / "fuzz" / f"{name}.log").read_text(errors="replace")
    found = {key: int(value) for key, value in re.findall(r"^stat::(\w+):\s+(\d+)", log, re.M)}
    ran = re.search(r"Done \d+ runs in (\d+) second", log)
    coverage = re.findall(r"cov: (\d+)", log)
    return {
        "seconds": int(ran.group(1)) if ran else None,  # none: it stopped at a failure
        "executions": found.get("number_of_executed_units"),
        "coverage_edges": int(coverage[-1]) if coverage else None,
        "peak_rss_mb": found.get("peak_rss_mb"),
        "committed_corpus_files": len(list((ROOT / "tests/fuzz/corpus" / name).iterdir())),
        "corpus_files": len(list((build / "fuzz/corpus" / name).iterdir())),
        "failures": len(list((build / "fuzz/failed" / name).iterdir())),
        "exit_status": int((build / "fuzz" / f"{name}.status").read_text()),
    }


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    isa = "avx512" if " avx512bw" in info else "avx2" if " avx2" in info else "neon"
    return {"cpu": re.search(r"model name\s*: (.*)", info).group(1), "threads": info.count("processor\t:"), "isa": isa}


targets = {name: target(name) for name in names}
commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                        capture_output=True, text=True).stdout.strip()
clean = all(t["failures"] == 0 and t["exit_status"] == 0 and t["seconds"] is not None for t in targets.values())
every = {path.name.removesuffix("_fuzz.cpp") for path in (ROOT / "tests/fuzz").glob("*_fuzz.cpp")}
record = "fuzz" if set(names) == every else "-".join(["fuzz", *names])
print(write_record(record, f"tools/fuzz.sh build/fuzz {seconds} {' '.join(names)}", machine(),
                   {"commit": commit, "sanitizers": "libFuzzer, address, undefined, leak", "clean": clean, "targets": targets}))
sys.exit(0 if clean else "a target failed: see " + str(build / "fuzz/failed"))
