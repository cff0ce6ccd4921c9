"""A plain HTTP client of vLLM's routes: starts a server, asks it every case of server_cases.py, tells an answer's shape.

Nothing here knows which server answers, but the command that starts it.
"""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import numpy
from safetensors.numpy import save_file

API_KEY = "interop-key"
MODEL = "base"
MAX_MODEL_LEN = 512
# Objects whose keys are data (a token, an id): their values' shapes count, not their keys.
MAPS = {"top_logprobs", "prompt_logprobs"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def vllm_command(program, model, port, more=()):
    command = [program, "serve", model, "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", port, "--dtype", "float32",
               "--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", 8, "--no-enable-prefix-caching", "--enable-lora",
               "--max-lora-rank", 16, "--max-loras", 2, "--max-cpu-loras", 4, "--api-key", API_KEY, *more]
    environment = dict(os.environ, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", VLLM_CPU_KVCACHE_SPACE="1",
                       VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    return [str(part) for part in command], environment


def lockstep_command(program, model, port, more=()):
    command = [program, "serve", "--hf-checkpoint", model, "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", port,
               "--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", 8, "--max-lora-rank", 16, "--max-loras", 4, "--api-key", API_KEY,
               *more]
    return [str(part) for part in command], dict(os.environ)


class Server:
    """A server process of its own process group; stop() ends all of it."""

    def __init__(self, command, environment, port, log):
        self.port, self.log = port, pathlib.Path(log)
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)

    def wait_ready(self, seconds=300):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server stopped while starting:\n{self.tail()}"
            try:
                if Client(self.port, timeout=2).get("/health").status == 200:
                    return self
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"the server did not come up in {seconds} s:\n{self.tail()}")

    def tail(self, size=4000):
        return self.log.read_text(errors="replace")[-size:]

    def stop(self):
        """Asks it to end, then makes it; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        return status


class Answer:
    def __init__(self, status, content_type, text):
        self.status, self.content_type, self.text = status, content_type, text

    def json(self):
        return json.loads(self.text)

    def events(self):
        """What a stream's events carry; the end mark stays a string."""
        datas = [block[len("data: "):] for block in self.text.split("\n\n") if block]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]


class Client:
    def __init__(self, port, key=API_KEY, timeout=300):
        self.port, self.key, self.timeout = port, key, timeout

    def request(self, method, path, body=None, headers=None):
        """`body`: str is sent as it is, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if body is not None:
            sent["Content-Type"] = "application/json"
            body = body if isinstance(body, str) else json.dumps(body)
        sent.update(headers or {})
        try:
            connection.request(method, path, None if body is None else body.encode(),
                               {name: value for name, value in sent.items() if value is not None})
            answer = connection.getresponse()
            text = answer.read().decode()
            return Answer(answer.status, (answer.getheader("Content-Type") or "").split(";")[0], text)
        finally:
            connection.close()

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)


def merged(shapes):
    return sorted(shapes, key=json.dumps) if shapes else []


def distinct(shapes):
    found = []
    for shape in shapes:
        if shape not in found:
            found.append(shape)
    return merged(found)


def shape_of(value, name=""):
    """Keys and types: dicts by key, lists as the distinct shapes of their elements."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return type(value).__name__
    if isinstance(value, str):
        return "str"
    if isinstance(value, list):
        return {"list": distinct(shape_of(element, name) for element in value)}
    if name in MAPS and "logprob" not in value:
        return {"map": distinct(shape_of(element, "") for element in value.values())}
    return {"object": {key: shape_of(value[key], key) for key in sorted(value)}}


def stream_shape(events):
    """For each choice its events' shapes in order, repeated ones once; a finished choice is done only once."""
    by_choice = {}
    for event in events:
        index = "end" if event == "[DONE]" else \
            "+".join(str(choice["index"]) for choice in event.get("choices", [])) or "no choice"
        shapes = by_choice.setdefault(index, [])
        shape = "[DONE]" if event == "[DONE]" else shape_of(event)
        if shape not in shapes:
            shapes.append(shape)
    return by_choice


def answer_shape(answer):
    if answer.content_type == "text/event-stream":
        return {"stream": stream_shape(answer.events())}
    if answer.content_type == "application/json" and answer.text:
        return shape_of(answer.json())
    return "text" if answer.text else "empty"


# PEFT directories of SmolLM2, the same bytes wherever they are made.

LAYERS, WIDTH, KV_WIDTH, FEED_FORWARD = 30, 576, 192, 1536
SHAPES = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, KV_WIDTH), "self_attn.v_proj": (WIDTH, KV_WIDTH),
          "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (WIDTH, FEED_FORWARD), "mlp.up_proj": (WIDTH, FEED_FORWARD),
          "mlp.down_proj": (FEED_FORWARD, WIDTH)}


def write_adapter(folder, seed=0, rank=16, modules=None, layers=LAYERS, scale=0.02, in_width=None):
    """A LoRA adapter whose B is not zero; `in_width` makes it one of another base."""
    numbers = numpy.random.RandomState(seed)
    tensors = {}
    for layer in range(layers):
        for name in modules or SHAPES:
            wide, tall = SHAPES[name]
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            wide = in_width or wide
            tensors[prefix + ".lora_A.weight"] = (numbers.standard_normal((rank, wide)) / wide**0.5).astype(numpy.float32)
            tensors[prefix + ".lora_B.weight"] = (scale * numbers.standard_normal((tall, rank))).astype(numpy.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(name.split(".")[1] for name in modules or SHAPES), "base_model_name_or_path": "SmolLM2-135M-Instruct",
        "use_dora": False, "use_rslora": False, "fan_in_fan_out": False, "modules_to_save": None, "inference_mode": True}))
    return folder


def write_adapters(folder):
    """Every adapter the cases name, good and bad: {placeholder: path}."""
    few = {"modules": ["self_attn.q_proj"], "layers": 1}
    paths = {"A": write_adapter(folder / "a", seed=1), "B": write_adapter(folder / "b", seed=2),
             "WIDE": write_adapter(folder / "wide", rank=64, **few),
             "ALIEN": write_adapter(folder / "alien", in_width=512, **few),
             "TRUNCATED": write_adapter(folder / "truncated", **few), "MISSING": folder / "missing"}
    weights = folder / "truncated" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for name in ("NO_CONFIG", "NO_WEIGHTS"):
        paths[name] = write_adapter(folder / name.lower(), **few)
    (folder / "no_config" / "adapter_config.json").unlink()
    (folder / "no_weights" / "adapter_model.safetensors").unlink()
    return {name: str(path) for name, path in paths.items()}
