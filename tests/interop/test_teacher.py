"""On-policy distillation with a teacher behind HTTP: `lockstep serve` gives the run of a teacher in the process, bit for bit; vLLM its numbers."""
import json
import os
import pathlib
import time

import pytest
from server_client import Client, Server, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARITH = ROOT / "models" / "arith"


def train(lockstep, run, *flags):
    lockstep("train", "--hf-checkpoint", ARITH, "--prompt-data", ARITH / "train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "number",
             "--rollout-batch-size", 8, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 16, "--rollout-shuffle", "--lora-rank", 4,
             "--target-modules", "all-linear", "--lr", "2e-3", "--num-rollout", 3, "--save", run, *flags)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def adapter(run):
    return run / "iter_0000003" / "lora_adapter"


def wait_ready(server):
    """Without an API key."""
    def healthy():
        try:
            return Client(server.port, key=None, timeout=2).get("/health").status == 200
        except OSError:
            return False
    for _ in range(1500):
        assert server.process.poll() is None, server.tail()
        if healthy():
            return
        time.sleep(0.2)
    raise AssertionError(server.tail())


DISTIL = ["--advantage-estimator", "on_policy_distillation"]


def test_our_server_is_the_teacher_of_this_process(lockstep, tmp_path):
    teacher = tmp_path / "teacher"
    train(lockstep, teacher)
    port = free_port()
    server = Server([str(x) for x in (lockstep.binary, "serve", "--hf-checkpoint", ARITH, "--host", "127.0.0.1", "--port", port, "--max-lora-rank", 16,
                                      "--lora-modules", f"t={adapter(teacher)}")], dict(os.environ), port, tmp_path / "log")
    try:
        wait_ready(server)
        here = train(lockstep, tmp_path / "here", *DISTIL, "--opd-teacher-load", adapter(teacher))
        there = train(lockstep, tmp_path / "there", *DISTIL, "--opd-teacher-urls", f"127.0.0.1:{port}", "--opd-teacher-model", "t")
    finally:
        server.stop()
    assert [line["opd_reverse_kl"] for line in there] == [line["opd_reverse_kl"] for line in here]
    assert here[0]["opd_reverse_kl"] != 0
    name = "adapter_model.safetensors"
    assert (adapter(tmp_path / "there") / name).read_bytes() == (adapter(tmp_path / "here") / name).read_bytes()


def test_vllm_is_a_teacher(lockstep, request, tmp_path):
    program = request.config.getoption("--vllm")
    if program is None:
        pytest.skip("no --vllm program given")
    port = free_port()
    server = Server([str(x) for x in (program, "serve", ARITH, "--served-model-name", "big", "--host", "127.0.0.1", "--port", port, "--dtype", "float32",
                                      "--max-num-seqs", 8, "--no-enable-prefix-caching")],
                    dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1"),
                    port, tmp_path / "log")
    try:
        wait_ready(server)
        here = train(lockstep, tmp_path / "here", "--use-opd", "--opd-teacher-load", ARITH)
        there = train(lockstep, tmp_path / "there", "--use-opd", "--opd-teacher-urls", f"default=http://127.0.0.1:{port}")
    finally:
        server.stop()
    # The student begins as the teacher; then rewards move it. Base weights are bf16 here and float32 there.
    assert here[0]["opd_reverse_kl"] == 0
    assert abs(there[0]["opd_reverse_kl"]) < 0.02
    assert abs(there[1]["opd_reverse_kl"] - here[1]["opd_reverse_kl"]) < 0.02


def test_another_temperature_is_refused(lockstep, tmp_path):
    done = lockstep.run("train", "--hf-checkpoint", ARITH, "--prompt-data", ARITH / "train.jsonl", "--input-key", "prompt", "--label-key", "label",
                        "--rm-type", "number", "--rollout-batch-size", 8, "--num-rollout", 1, "--lora-rank", 4, "--target-modules", "all-linear",
                        "--use-opd", "--opd-teacher-urls", "127.0.0.1:9", "--rollout-temperature", "0.7")
    assert done.returncode == 2 and "--rollout-temperature" in done.stderr
