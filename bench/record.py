"""Records of measurements: bench/records/<cpu>-<isa>-<threads>t/<date>-<name>.json, on a GPU bench/records/<gpu>/..."""
import datetime
import json
import pathlib
import platform
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]


def write_record(name, command, machine, content):
    """`machine` is that of a `lockstep bench` record: {cpu, threads, isa}, on a GPU also gpu."""
    place = machine.get("gpu") or f"{machine['cpu']}-{machine['isa']}-{machine['threads']}t"
    folder = re.sub(r"[^a-z0-9]+", "-", place.lower())
    date = datetime.date.today().isoformat()
    record = {"name": name, "date": date, "command": command, "machine": {**machine, "kernel": platform.release()}, **content}
    target = ROOT / "bench/records" / folder / f"{date}-{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2) + "\n")
    return target.relative_to(ROOT)
