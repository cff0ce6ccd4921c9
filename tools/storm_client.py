#!/usr/bin/env python3
"""`lockstep serve` under a storm: clients ask through adapters while others load, replace and unload these adapters.

    storm_client.py build/release/lockstep [--device cuda|cpu] [--seconds 60] [--clients 10] [--loaders 3]

Every answer is compared with what the version it names says when it is asked alone: text, tokens, log-probs. Prints what
was counted; fails if an answer was wrong or missing, or if the server says that a step or a recording failed. Needs
nothing but Python's own library.
"""
import argparse
import array
import collections
import http.client
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

MODEL = pathlib.Path(__file__).resolve().parent.parent / "models/arith"
CONTENTS, PROMPTS, NAMES_EACH = 6, 8, 2


def write_adapter(directory, seed):
    """A PEFT directory with random factors for all linear modules of the model."""
    config = json.loads((MODEL / "config.json").read_text())
    width, ffn, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"self_attn.q_proj": (width, queries), "self_attn.k_proj": (width, keys), "self_attn.v_proj": (width, keys),
              "self_attn.o_proj": (queries, width), "mlp.gate_proj": (width, ffn), "mlp.up_proj": (width, ffn),
              "mlp.down_proj": (ffn, width)}
    source, rank = random.Random(seed), 4 << seed % 3
    header, data = {}, bytearray()
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in shapes.items():
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = array.array("f", (source.uniform(-0.15, 0.15) for _ in range(shape[0] * shape[1])))
                begin = len(data)
                data += values.tobytes()
                header[f"base_model.model.model.layers.{layer}.{name}.lora_{part}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    directory.mkdir()
    (directory / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none",
        "base_model_name_or_path": "", "target_modules": sorted(name.split(".")[1] for name in shapes)}))
    return directory


class Storm:
    def __init__(self, port, directories):
        self.port, self.directories = port, directories
        self.lock, self.counts, self.failures = threading.Lock(), collections.Counter(), []
        self.content_of, self.stopping = {}, threading.Event()
        self.wanted = {}
        for content in [None, *range(CONTENTS)]:
            if content is not None:
                self.load(self.connect(), "alone", content)
            for prompt in range(PROMPTS):
                status, answer = self.ask(self.connect(), "alone" if content is not None else "base", prompt)
                assert status == 200, answer
                self.wanted[content, prompt] = self.said(answer)
        self.post(self.connect(), "/v1/unload_lora_adapter", {"lora_name": "alone"})

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    @staticmethod
    def post(connection, path, body):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, text

    def ask(self, connection, model, prompt):
        status, text = self.post(connection, "/v1/completions", {
            "model": model, "prompt": [1 + (t * 7 + prompt % 3 * t // 16) % 250 for t in range(3 + 7 * prompt)],
            "max_tokens": 5 + prompt * 11 % 40, "temperature": 0.9 if prompt % 2 else 0, "seed": prompt,
            "n": 1 + prompt % 2, "logprobs": 1, "return_token_ids": True})
        return status, json.loads(text) if status == 200 else text

    @staticmethod
    def said(answer):
        return [{key: choice[key] for key in ("index", "text", "logprobs", "token_ids", "finish_reason")}
                for choice in answer["choices"]]

    def load(self, connection, name, content):
        with self.lock:
            version = len(self.content_of) + 1
            self.content_of[version] = content
        status, text = self.post(connection, "/v1/load_lora_adapter", {
            "lora_name": name, "lora_path": str(self.directories[content]), "load_inplace": True, "adapter_version": version})
        if status != 200:
            raise RuntimeError(f"loading {name}: {status} {text}")

    def fail(self, what):
        with self.lock:
            self.failures.append(what)

    def client(self, number, names):
        source, connection = random.Random(100 + number), self.connect()
        while not self.stopping.is_set():
            name, prompt = source.choice(["base", *names]), source.randrange(PROMPTS)
            status, answer = self.ask(connection, name, prompt)
            if status == 404 and name != "base":
                self.counts["unloaded"] += 1
                continue
            self.counts["answers"] += 1
            if status != 200:
                self.fail(f"{status} {answer}")
                continue
            version = answer["adapter_version"]
            if (version is None) != (name == "base") or version is not None and version not in self.content_of:
                self.fail(f"{name} answered by version {version}")
            elif self.said(answer) != self.wanted[self.content_of.get(version), prompt]:
                self.fail(f"prompt {prompt}: not what version {version} says alone")

    def loader(self, number, names):
        source, connection, loaded = random.Random(200 + number), self.connect(), set()
        while not self.stopping.is_set():
            name = source.choice(names)
            if name in loaded and source.random() < 0.25:
                status, text = self.post(connection, "/v1/unload_lora_adapter", {"lora_name": name})
                if status != 200:
                    self.fail(f"unloading {name}: {status} {text}")
                loaded.discard(name)
                self.counts["unloads"] += 1
            else:
                self.load(connection, name, source.randrange(CONTENTS))
                loaded.add(name)
                self.counts["loads"] += 1

    def run(self, part, *arguments):
        try:
            part(*arguments)
        except Exception as error:  # the thread's end; told with the failures
            self.fail(f"{type(error).__name__}: {error}")

    def rage(self, seconds, clients, loaders):
        names = [[f"name{loader}-{i}" for i in range(NAMES_EACH)] for loader in range(loaders)]
        threads = [threading.Thread(target=self.run, args=(self.client, c, sum(names, []))) for c in range(clients)]
        threads += [threading.Thread(target=self.run, args=(self.loader, number, names[number])) for number in range(loaders)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.failures:
            time.sleep(0.1)
        self.stopping.set()
        for thread in threads:
            thread.join()

    def failed_by_itself(self):
        """Steps and recordings that the server says failed, though no answer showed it."""
        time.sleep(0.5)
        connection = self.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return [line for line in lines if line.startswith("lockstep:failed_") and not line.endswith(" 0")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--loaders", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        directories = [write_adapter(pathlib.Path(directory) / f"adapter{seed}", seed) for seed in range(CONTENTS)]
        server = subprocess.Popen(
            [options.lockstep, "serve", "--hf-checkpoint", str(MODEL), "--served-model-name", "base", "--port", "0",
             "--device", options.device, "--kv-cache-bytes", str(256 << 20)], stdout=subprocess.PIPE, text=True)
        try:
            first = server.stdout.readline()
            if not first:
                sys.exit(f"storm: the server ended with {server.wait()}")
            threading.Thread(target=server.stdout.read, daemon=True).start()
            storm = Storm(int(re.search(r"http://[^ ]*:(\d+)", first)[1]), directories)
            storm.rage(options.seconds, options.clients, options.loaders)
            failed = storm.failures + storm.failed_by_itself()
        finally:
            server.terminate()
            status = server.wait(60)
        if status != 0:
            failed.append(f"the server ended with {status}")
        counts = storm.counts
        print(f"storm over HTTP: {counts['answers']} answers, {counts['loads']} loads, {counts['unloads']} unloads, "
              f"{counts['unloaded']} requests for unloaded names, {len(failed)} failures")
        for what in failed[:5]:
            print(f"  {what}")
        sys.exit(1 if failed or not counts["answers"] or not counts["loads"] else 0)


if __name__ == "__main__":
    main()
