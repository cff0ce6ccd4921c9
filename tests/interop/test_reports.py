"""TensorBoard, Weights & Biases and trackio read the files of a run, with the numbers of metrics.jsonl."""

import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ["train", "--hf-checkpoint", ROOT / "models/arith", "--prompt-data", ROOT / "models/arith/train.jsonl", "--input-key", "prompt",
       "--label-key", "label", "--rm-type", "number", "--rollout-batch-size", 4, "--n-samples-per-prompt", 4,
       "--rollout-max-response-len", 12, "--lora-rank", 4, "--target-modules", "all-linear", "--lr", "1e-3",
       "--eval-prompt-data", "held", str(ROOT / "models/arith/test.jsonl") + "@[0:16]", "--eval-interval", 2,
       "--use-kl-loss", "--kl-loss-coef", 0.01, "--save-interval", 2]


@pytest.fixture(scope="module")
def run(lockstep, tmp_path_factory):
    """A run that was resumed from an earlier checkpoint: steps 3 and 4 were written twice."""
    save = tmp_path_factory.mktemp("reports") / "run"
    flags = [*RUN, "--save", save, "--use-tensorboard", "--use-wandb", "--wandb-project", "arith", "--wandb-key", "hunter2", "--use-trackio",
             "--dump-details", save / "details"]
    lockstep(*flags, "--num-rollout", 4)
    lockstep(*flags, "--num-rollout", 5, "--load", save, "--ckpt-step", 2)
    return save


def expected(save):
    """{name: {step: value}} of metrics.jsonl."""
    series = {}
    for line in (save / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        prefix = f"eval/{line['eval']}/" if "eval" in line else ""
        for key, value in line.items():
            if isinstance(value, (int, float)) and key != "step":
                series.setdefault(prefix + key, {})[line["step"]] = value
    assert sorted(series["reward"]) == [1, 2, 3, 4, 5]
    assert sorted(series["eval/held/accuracy"]) == [0, 2, 4, 5]
    return series


def test_tensorboard_reads_the_same_numbers(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    events.Reload()
    wanted = expected(run)
    assert sorted(events.Tags()["scalars"]) == sorted(wanted)
    for name, values in wanted.items():
        read = {event.step: event.value for event in events.Scalars(name)}
        assert sorted(read) == sorted(values), name
        assert len(events.Scalars(name)) == len(values), name
        for step, value in values.items():
            assert read[step] == pytest.approx(value, rel=2e-7), (name, step)


class FakeWandb(http.server.BaseHTTPRequestHandler):
    """As much of W&B's server as `wandb sync` asks for; keeps the rows of the history."""

    history, config = [], []

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({})

    do_PUT = do_GET

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if "file_stream" in self.path:
            rows = body.get("files", {}).get("wandb-history.jsonl", {})
            FakeWandb.history += rows.get("content", [])
            return self.answer({"exitcode": None, "limits": {}})
        query = body.get("query", "")
        FakeWandb.config.append(json.dumps(body.get("variables", {})))
        run = {"id": "r", "name": "run", "displayName": "run", "description": "", "config": "{}", "sweepName": None, "historyLineCount": 0,
               "project": {"id": "p", "name": "arith", "entity": {"id": "e", "name": "me"}}}
        self.answer({"data": {"upsertBucket": {"bucket": run, "inserted": True}, "viewer": {"id": "v", "entity": "me", "username": "me",
                    "flags": "{}", "teams": {"edges": []}}, "model": {"bucket": None}, "project": None, "entity": None,
                    "serverInfo": {"cliVersionInfo": {"max_cli_version": "9.9.9"}, "features": [], "latestLocalVersionInfo": None},
                    "QueryType": {"fields": [], "inputFields": []}, "MutationType": {"fields": []}, "__type": {"fields": [], "inputFields": []},
                    "createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []}} if query else {}})

    def log_message(self, *arguments):
        pass


def test_wandb_sync_sends_the_same_numbers(run, tmp_path):
    logs = list((run / "wandb").glob("offline-run-*-*/run-*.wandb"))
    assert len(logs) == 1
    assert b"hunter2" not in logs[0].read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeWandb)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {**os.environ, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path),
                   "WANDB_ERROR_REPORTING": "false"}
    wandb = pathlib.Path(sys.executable).with_name("wandb")
    done = subprocess.run([wandb, "sync", str(logs[0].parent)], env=environment, cwd=tmp_path,  # as docs/dashboard.md says
                         
                          capture_output=True, text=True, timeout=180)
    server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(row) for row in FakeWandb.history]
    assert rows, done.stdout + done.stderr
    read = {}
    for row in rows:
        for name, value in row.items():
            read.setdefault(name, {})[row["_step"]] = value
    for name, values in expected(run).items():
        assert read.get(name) == values, name
    assert any("lora-rank" in config for config in FakeWandb.config)


def test_trackio_imports_the_same_numbers(run):
    program = """
import json, sys
from trackio import fragments
from trackio.sqlite_storage import SQLiteStorage
count = fragments.import_inbox_dir()
runs = SQLiteStorage.get_runs("lockstep")
logs = SQLiteStorage.get_logs("lockstep", runs[0])
print(json.dumps({"count": count, "runs": len(runs), "logs": logs}))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(run / "trackio")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["runs"] == 1 and answer["count"] > 0
    read = {}
    for log in answer["logs"]:
        for name, value in log.items():
            if isinstance(value, (int, float)):
                read.setdefault(name, {})[log["step"]] = value
    for name, values in expected(run).items():
        for step, value in values.items():
            if not name.endswith("_ms") and name not in ("tokens_per_s", "memory_bytes"):  # of steps that ran twice
                assert read[name][step] == value, (name, step)


def test_a_key_on_the_command_line_is_written_nowhere(run):
    for path in run.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
