import json
import pathlib
import subprocess

import pytest
from server_client import Client, Server, free_port, lockstep_command, write_adapters

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
FAMILIES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.safetensors"))


def pytest_addoption(parser):
    parser.addoption("--lockstep", required=True, help="the binary to test")
    parser.addoption("--smollm2", default=None, help="SmolLM2-135M-Instruct directory")
    parser.addoption("--vllm", default=None, help="vLLM's program; without it recorded answers are compared")
    parser.addoption("--engine-curves", default=None, help="picture of the runs of test_engines.py")
    parser.addoption("--sglang", default=None, help="folder with SGLang's wheel")
    parser.addoption("--record-vllm", action="store_true", help="write vLLM's answers to vllm_shapes.json")
    parser.addoption("--test-data", default=None, help="folder with tokenizers/ and data/ (LOCKSTEP_TEST_DATA)")
    parser.addoption("--tokenizer-texts", type=int, default=200_000, help="made-up texts for each real tokenizer")


class Lockstep:
    def __init__(self, binary):
        self.binary = binary

    def run(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True)

    def __call__(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, f"{' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def score(self, model, rows, folder, adapter=None):
        """Log-probabilities of every row, as lists without the leading null."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        extra = ["--lora-adapter-path", adapter] if adapter else []
        self("score", "--hf-checkpoint", model, *extra, "--input", folder / "rows.jsonl", "--output",
             folder / "scored.jsonl")
        scored = [json.loads(line) for line in (folder / "scored.jsonl").read_text().splitlines()]
        assert [row["logprobs"][0] for row in scored] == [None] * len(rows)
        return scored


@pytest.fixture(scope="session")
def lockstep(request):
    return Lockstep(request.config.getoption("--lockstep"))


def rows_program(lockstep, name):
    """The test program `name` beside the binary, as a function: what it answers to each row."""
    binary = pathlib.Path(lockstep.binary).parent / name
    if not binary.exists():
        pytest.skip(f"no {binary}: build the tests")

    def run(rows):
        done = subprocess.run([binary], input="".join(json.dumps(row) + "\n" for row in rows), capture_output=True, text=True,
                              check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]
    return run


@pytest.fixture(scope="session")
def smollm2(request):
    path = request.config.getoption("--smollm2")
    if path is None:
        pytest.skip("no --smollm2 directory given")
    return pathlib.Path(path)


@pytest.fixture(scope="session")
def adapter_paths(tmp_path_factory):
    """Adapters of SmolLM2, good and bad, by the names of server_client.write_adapters."""
    return write_adapters(tmp_path_factory.mktemp("adapters"))


class Serving:
    def __init__(self, server):
        self.server, self.port = server, server.port

    def client(self):
        return Client(self.port)


@pytest.fixture(scope="module")
def serving(request, smollm2, adapter_paths, tmp_path_factory):
    """`lockstep serve` of SmolLM2 with adapters a and b."""
    port = free_port()
    modules = ["--lora-modules", f"a={adapter_paths['A']}", f"b={adapter_paths['B']}"]
    log = tmp_path_factory.mktemp("serve") / "log"
    server = Server(*lockstep_command(request.config.getoption("--lockstep"), smollm2, port, modules), port, log)
    try:
        yield Serving(server.wait_ready())
    finally:
        status = server.stop()
    assert status == 0, f"the server did not end well: {status}\n{server.tail()}"


@pytest.fixture(params=FAMILIES)
def family(request):
    return GOLDEN / request.param


@pytest.fixture(scope="session")
def test_data(request):
    path = request.config.getoption("--test-data")
    if path is None:
        pytest.skip("no --test-data directory given")
    return pathlib.Path(path)


@pytest.fixture
def clockless():
    """The command's clock cannot be set; templates that ask for the date are given one instead."""
    return lambda source: '{%- macro strftime_now(format) %}{{ "04 Jul 2026" }}{% endmacro %}' + source
