"""`lockstep serve` on a GPU through HTTP: random weights in a model's shape, 128 in, 256 out, log-probs of every token.

    bench/serve_gpu.py --lockstep build/release/lockstep --load build/bench/serve_load --model DIR

DIR holds a config.json (bench/shapes) and a tokenizer. Base and a rank-16 adapter of every linear layer at 1, 64 and 256
streams, 64 adapters at once, time to the first token with and without a prefix hit, replacing an adapter in place.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/interop"))
from record import write_record  # noqa: E402
from server_client import Client, Server, free_port  # noqa: E402

# Of the Qwen3-0.6B shape on the same kind of GPU, measured on another day in its own process, without HTTP.
VLLM = {"version": "0.24", "tokens_per_s": {"base": {"1": 554, "64": 23100, "256": 37600},
                                            "one_adapter": {"1": 324, "64": 14700, "256": 30100}}}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--load", required=True, help="serve_load of a LOCKSTEP_BENCH build")
parser.add_argument("--model", required=True)
parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 256])
parser.add_argument("--num-adapters", type=int, default=64)
parser.add_argument("--name", default="serve-on-gpu")
options = parser.parse_args()
work = tempfile.TemporaryDirectory()
folder = pathlib.Path(work.name)
config = json.loads((pathlib.Path(options.model) / "config.json").read_text())


def write_adapter(number, rank=16):
    """Every linear layer, B not zero."""
    width, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"self_attn.q_proj": (width, q), "self_attn.k_proj": (width, kv), "self_attn.v_proj": (width, kv),
              "self_attn.o_proj": (q, width), "mlp.gate_proj": (width, ffn), "mlp.up_proj": (width, ffn), "mlp.down_proj": (ffn, width)}
    numbers, tensors = numpy.random.default_rng(number), {}
    for layer in range(config["num_hidden_layers"]):
        for name, (wide, tall) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[prefix + ".lora_A.weight"] = numbers.standard_normal((rank, wide), dtype=numpy.float32) / wide**0.5
            tensors[prefix + ".lora_B.weight"] = 0.02 * numbers.standard_normal((tall, rank), dtype=numpy.float32)
    path = folder / f"adapter{number}"
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(name.split(".")[1] for name in shapes)}))
    return path


port = free_port()
names = [f"adapter{number}" for number in range(options.num_adapters)]
paths = [write_adapter(number) for number in range(options.num_adapters)]
server = Server([options.lockstep, "serve", "--hf-checkpoint", options.model, "--load-format", "dummy", "--served-model-name", "base",
                 "--device", "cuda", "--max-num-seqs", "256", "--max-loras", str(options.num_adapters + 1), "--port", str(port),
                 "--lora-modules", *[f"{name}={path}" for name, path in zip(names, paths)]], None, port, folder / "log")
loads = 0


def load(model, concurrency, requests, prompt=128, answer=256, *more):
    global loads
    loads += 1
    path = folder / "load.json"
    command = [options.load, "--host", "127.0.0.1", "--port", port, "--model", model, "--endpoint", "completions", "--concurrency",
               concurrency, "--num-requests", requests, "--prompt-tokens", prompt, "--max-tokens", answer, "--vocab", 150000,
               "--temperature", 1, "--logprobs", 0, "--prompt-seed", loads, "--json", path, *more]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}\n{(folder / 'log').read_text()[-2000:]}")
    return json.loads(path.read_text())


def rates(model):
    found = {}
    for concurrency in options.concurrency:
        load(model, concurrency, concurrency, 128, 32)  # records the graphs
        result = load(model, concurrency, (2 if concurrency > 1 else 4) * concurrency)
        found[str(concurrency)] = {key: result[key] for key in ("tokens_per_s", "ttft_ms", "inter_token_ms")}
        print(model[:24], concurrency, round(result["tokens_per_s"], 1), "tok/s", flush=True)
    return found


def in_place(client):
    times = []
    for turn in range(20):
        body = {"lora_name": names[0], "lora_path": str(paths[turn % 2]), "load_inplace": True}
        start = time.perf_counter()
        assert client.post("/v1/load_lora_adapter", body).status == 200
        times.append(1000 * (time.perf_counter() - start))
    return {"p50_ms": sorted(times)[len(times) // 2], "max_ms": max(times)}


try:
    server.wait_ready()
    client = Client(port, key=None)
    results = {"base": rates("base"), "one_adapter": rates(names[0]), f"{len(names)}_adapters": rates(",".join(names))}
    results["prompt_2048"] = {"cold_ms": load("base", 1, 8, 2048, 2)["ttft_ms"]}
    results["prompt_2048"]["prefix_hit_ms"] = load("base", 1, 9, 2048, 2, "--shared-prefix", 2032)["ttft_ms"]
    many = load("base", 1000, 1000, 64, 64)
    results["1000_streams"] = {key: many[key] for key in ("tokens_per_s", "num_errors", "ttft_ms", "inter_token_ms")}
    results["load_in_place"] = in_place(client)
finally:
    server.stop()
about = folder / "about.json"
subprocess.run([options.lockstep, "bench", "--hf-checkpoint", options.model, "--load-format", "dummy", "--only", "decode",
                "--decode-batch", "1", "--new-tokens", "8", "--json", str(about)], check=True, stdout=subprocess.DEVNULL)
about = json.loads(about.read_text())
print(json.dumps(results, indent=1))
print(write_record(options.name, "bench/serve_gpu.py", about["machine"],
                   {"commit": about["commit"], "model": about["model"], "tokens": {"prompt": 128, "answer": 256}, "results": results,
                    **({"vllm": VLLM} if config["hidden_size"] == 1024 else {})}))
