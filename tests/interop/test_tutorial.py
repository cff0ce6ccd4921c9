"""The end of docs/tutorial.md: vLLM serves the adapter that its commands train."""
import json
import os
import pathlib
import re
import subprocess

import pytest
from server_client import free_port, vllm_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def commands(word=""):
    """The fenced blocks that begin with ```bash and this word."""
    return "".join(re.findall(rf"```bash{' ' + word if word else ''}\n(.*?)```", PAGE, re.DOTALL))


def run(script, folder, environment):
    done = subprocess.run(["timeout", "600", "bash", "-eu", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_vllm_serves_the_adapter(request, lockstep, tmp_path):
    program = request.config.getoption("--vllm")
    if program is None:
        pytest.skip("no --vllm program given")
    (tmp_path / "build").mkdir()
    (tmp_path / "models").symlink_to(ROOT / "models")
    port = str(free_port())
    environment = dict(vllm_command(program, ROOT / "models" / "arith", port)[1])
    folders = [str(pathlib.Path(path).resolve().parent) for path in (lockstep.binary, program)]
    environment["PATH"] = ":".join([*folders, environment.get("PATH", os.environ["PATH"])])

    training = commands()
    for told, small in (("--num-rollout 80", "--num-rollout 2"), ("--eval-interval 20", "--eval-interval 1"),
                        ("--save-interval 40", "--save-interval 1"), ("iter_0000080", "iter_0000002")):
        assert told in training
        training = training.replace(told, small)
    run(training, tmp_path, environment)

    serving = commands("vllm")
    assert "8001" in serving and "iter_0000080" in serving
    printed = run(serving.replace("8001", port).replace("iter_0000080", "iter_0000002"), tmp_path, environment)
    # The answer has no newline of its own, and vLLM's log goes on behind it.
    answer, _ = json.JSONDecoder().raw_decode(next(line for line in printed.splitlines()[::-1] if line.startswith("{")))
    assert answer["model"] == "sums" and answer["choices"][0]["text"]
