"""tools/gpu_trace.py: what each launch between two of a kernel adds, of launches that overlap."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("gpu_trace", ROOT / "tools/gpu_trace.py")
gpu_trace = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu_trace)


def test_a_launch_adds_what_ends_later_because_of_it():
    rows, at = [(0, 5, "p", "warmup")], 5
    for _ in range(3):
        rows += [(at - 1, at + 10, "p", "attention<1>"), (at, at + 4, "p", "beside"), (at + 8, at + 13, "p", "matmul"),
                 (at, at + 100, "p", "host wait")]
        at += 13
    rows += [(at - 1, at + 9, "p", "attention<1>"), (at + 9, at + 20, "p", "other"), (at + 19, at + 30, "p", "attention<1>")]
    most, once = gpu_trace.chains(rows, "attention")
    assert most == (("p  attention<1>", "p  beside", "p  matmul"), 3, [(10, -1, 11), (0, -10, 4), (3, -2, 5)])
    assert once == (("p  attention<1>", "p  other"), 1, [(9, -1, 10), (11, 0, 11)])
