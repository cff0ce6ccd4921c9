"""vLLM on the CPU: decode throughput at several concurrencies, with and without a LoRA adapter, and the time of an in-place load.

Starts its own server (VENV/bin/vllm) on a loopback port for the base and again with --enable-lora, and stops it.
"""
import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import aiohttp

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--vllm", required=True, help="the vllm program")
parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
parser.add_argument("--prompt-tokens", type=int, default=128)
parser.add_argument("--new-tokens", type=int, default=128)
parser.add_argument("--lora-rank", type=int, default=16)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--port", type=int, default=8137)
parser.add_argument("--json", required=True)
options = parser.parse_args()
URL = f"http://127.0.0.1:{options.port}"


def make_adapter(folder):
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    config = peft.LoraConfig(r=options.lora_rank, lora_alpha=2 * options.lora_rank, init_lora_weights=False,
                             target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(model, config).save_pretrained(folder, save_embedding_layers=False)


def start_server(lora):
    command = [options.vllm, "serve", options.model, "--served-model-name", "base", "--host", "127.0.0.1", "--port",
               str(options.port), "--dtype", options.dtype, "--max-model-len", "1024", "--no-enable-prefix-caching"]
    if lora:
        command += ["--enable-lora", "--max-lora-rank", str(max(16, options.lora_rank)), "--max-loras", "2"]
    environment = dict(os.environ, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True", VLLM_CPU_KVCACHE_SPACE="3",
                       VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        if server.poll() is not None:
            sys.exit("the vLLM server stopped while starting")
        try:
            urllib.request.urlopen(URL + "/health", timeout=1)
            return server
        except OSError:
            time.sleep(1)
    sys.exit("the vLLM server did not come up in 300 s")


async def complete(session, model, vocabulary, numbers):
    body = {"model": model, "prompt": [numbers.randrange(100, vocabulary) for _ in range(options.prompt_tokens)],
            "max_tokens": options.new_tokens, "ignore_eos": True, "temperature": 1.0, "logprobs": 0}
    async with session.post(URL + "/v1/completions", json=body) as answer:
        data = await answer.json()
        return data["usage"]["completion_tokens"]


async def throughput(model, vocabulary, concurrency):
    numbers = random.Random(concurrency)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await complete(session, model, vocabulary, numbers)
        start = time.perf_counter()
        tokens = sum(await asyncio.gather(*(complete(session, model, vocabulary, numbers) for _ in range(concurrency))))
        return tokens / (time.perf_counter() - start)


def load(folder, inplace):
    body = json.dumps({"lora_name": "adapter", "lora_path": folder, "load_inplace": inplace}).encode()
    request = urllib.request.Request(URL + "/v1/load_lora_adapter", body, {"Content-Type": "application/json"})
    start = time.perf_counter()
    urllib.request.urlopen(request).read()
    return 1000 * (time.perf_counter() - start)


with open(os.path.join(options.model, "config.json")) as file:
    vocabulary = json.load(file)["vocab_size"]
result = {"dtype": options.dtype, "decode_tok_s": {}, "decode_lora_tok_s": {}}
with tempfile.TemporaryDirectory() as folder:
    make_adapter(folder)
    for lora in (False, True):
        server = start_server(lora)
        try:
            if lora:
                load(folder, False)
            for concurrency in options.concurrency:
                rate = asyncio.run(throughput("adapter" if lora else "base", vocabulary, concurrency))
                result["decode_lora_tok_s" if lora else "decode_tok_s"][str(concurrency)] = rate
                print(lora, concurrency, rate, flush=True)
            if lora:
                result["load_inplace_ms"] = statistics.median(load(folder, True) for _ in range(10))
        finally:
            server.terminate()
            server.wait()
with open(options.json, "w") as file:
    json.dump(result, file, indent=2)
print(json.dumps(result))
