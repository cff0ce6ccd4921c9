"""The same client program against a real vLLM server and `lockstep serve`: statuses, shapes, greedy tokens, log-probs.

With --vllm PROGRAM vLLM is started and asked now; without, what it answered is read from vllm_shapes.json, which
    pytest tests/interop/test_server.py --lockstep L --smollm2 DIR --vllm VENV/bin/vllm --record-vllm
writes anew.
"""
import json
import pathlib
from hashlib import sha256

import pytest
import server_cases
from server_client import (API_KEY, Client, Server, answer_shape, free_port, lockstep_command, vllm_command)
from server_compare import assert_same_values, differences, greedy_values, metric_families, not_allowed

RECORDED = pathlib.Path(__file__).parent / "vllm_shapes.json"

# What may differ in shape: (case, difference, why). Patterns match whole lines.
ALLOWED = [
    (".*", r"(event)?\.adapter_version: extra", "Lockstep's: the adapter version that made the answer"),
    ("models .*", r"\.data\[\]\.(adapter_version|adapter_versions|rank): extra", "Lockstep's: what can be asked for"),
    (".*", r"\.error\.param: str instead of null", "nullable; we name the field where vLLM does not"),
    (".*bad JSON.*|error: empty body", r"\.error\.param: null instead of str", "nullable; vLLM names the byte, our message does"),
]
# Where we answer another status or error type on purpose; None: no error.
OTHER_ANSWER = {
    # vLLM cuts max_tokens to what is left; an answer shorter than asked for is a surprise, so this is an error.
    "error: prompt and max_tokens beyond the context": (400, "BadRequestError"),
    # vLLM loads an adapter whose A is narrower than the layer and serves something.
    "load: of another base": (500, "InternalServerError"),
    # A limit like those of other fields; vLLM's library takes the list for a malformed one ("Bad Request").
    "error: five stops": (400, "BadRequestError"),
    # vLLM needs a parser for it; here the tools are the template's matter and the answer is text.
    "chat tools auto": (200, None),
}


def ask(client, case, adapters):
    """One case's answer in brief: what vllm_shapes.json holds of it."""
    _, method, path, body, options = case
    if isinstance(body, dict) and str(body.get("lora_path", "")).startswith("$"):
        body = {**body, "lora_path": adapters[body["lora_path"][1:]]}
    asking = Client(client.port, options.get("key", API_KEY))
    answer = asking.request(method, path, body, options.get("headers"))
    brief = {"status": answer.status, "type": answer.content_type, "shape": answer_shape(answer)}
    if options.get("metrics"):
        brief["metrics"] = metric_families(answer.text)
    elif answer.status == 200 and options.get("greedy"):
        brief["values"] = greedy_values(path, answer)
    elif answer.status != 200 and answer.content_type == "application/json":
        error = answer.json().get("error")
        brief["error"] = {key: error[key] for key in ("type", "param", "code")} if isinstance(error, dict) and "type" in error \
            else answer.json()
    elif answer.content_type != "application/json" and len(answer.text) < 200:
        brief["text"] = answer.text
    return brief


def ask_all(server, adapters):
    client = Client(server.port)
    return {case[0]: ask(client, case, adapters) for case in server_cases.ALL}


def run(command, environment, port, log, adapters):
    server = Server(command, environment, port, log)
    try:
        server.wait_ready()
        version = Client(port).get("/version").json()["version"]
        return version, ask_all(server, adapters)
    finally:
        server.stop()


def write_recording(content):
    """A case a line, so that another version's differences can be read."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(brief)}" for name, brief in content.pop("cases").items())
    head = json.dumps(content)[:-1]
    RECORDED.write_text(f'{head}, "cases": {{\n{lines}\n}}}}\n')


@pytest.fixture(scope="module")
def vllm(request, smollm2, adapter_paths, tmp_path_factory):
    program = request.config.getoption("--vllm")
    weights = sha256((pathlib.Path(adapter_paths["A"]) / "adapter_model.safetensors").read_bytes()).hexdigest()
    if program is None:
        recorded = json.loads(RECORDED.read_text())
        assert recorded["adapter_sha256"] == weights, "the adapters made here are not those of the recording"
        return recorded["cases"]
    port = free_port()
    version, cases = run(*vllm_command(program, smollm2, port), port, tmp_path_factory.mktemp("vllm") / "log", adapter_paths)
    if request.config.getoption("--record-vllm"):
        write_recording({"vllm": version, "adapter_sha256": weights, "cases": cases})
    return cases


@pytest.fixture(scope="module")
def ours(request, smollm2, adapter_paths, tmp_path_factory):
    port = free_port()
    command = lockstep_command(request.config.getoption("--lockstep"), smollm2, port)
    return run(*command, port, tmp_path_factory.mktemp("lockstep") / "log", adapter_paths)[1]


@pytest.mark.parametrize("case", server_cases.ALL, ids=[case[0] for case in server_cases.ALL])
def test_answers_as_vllm(vllm, ours, case):
    name = case[0]
    theirs, mine = vllm[name], ours[name]
    if name in OTHER_ANSWER:
        assert (mine["status"], mine.get("error", {}).get("type")) == OTHER_ANSWER[name]
        return
    assert mine["status"] == theirs["status"], f"{mine.get('error')}"
    # vLLM names no type where the answer is not JSON and where it is empty
    assert mine["type"] == theirs["type"] or not theirs["type"] and mine["type"] in ("", "text/plain")
    assert not not_allowed(differences(theirs["shape"], mine["shape"]), name, ALLOWED)
    assert mine.get("text") == theirs.get("text")
    if "error" in theirs:
        assert {**mine["error"], "param": None} == {**theirs["error"], "param": None}
    if "metrics" in theirs:
        assert mine["metrics"]
        for family, (kind, labels) in mine["metrics"].items():
            known = theirs["metrics"].get(family, ["no such metric", []])
            # what an `_info` metric tells of the configuration is each server's own choice
            assert kind == known[0] and (labels == known[1] or family.endswith("_info") and set(labels) <= {*known[1], "engine", "model_name"}), family
    if "values" in theirs:
        assert_same_values(theirs["values"], mine["values"])
