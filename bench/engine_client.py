"""Rollouts through our Sampler beside the same vLLM driven by its own benchmark client, and what our client costs, into records under bench/records/.

    bench/engine_client.py CLIENT                                          only the cost: 256 streams of a made-up server
    bench/engine_client.py CLIENT --vllm VLLM --model DIR --name NAME      both; VLLM is the program of a vLLM on the CPU

CLIENT is bench/engine_client of the build. vLLM is started once, with its prefix cache off; each round asks it for the same numbers of prompts and tokens, first by one
client, then by the other, in turns. `sampler_over_benchmark` is the ratio of tokens a second, the median of the rounds.
"""
import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

from record import ROOT, write_record


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = next(line.split(": ", 1)[1] for line in info.splitlines() if line.startswith("model name"))
    return {"cpu": cpu, "threads": os.cpu_count(), "isa": "avx512" if " avx512bw" in info else "avx2"}


def client_rounds(options, *more):
    command = [options.client, "--rounds", 1, "--input-len", options.input_len, "--output-len", options.output_len, *more]
    said = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    return json.loads(said)


class Vllm:
    """A server of the model; its log is shown if it does not come."""
    def __init__(self, options, folder, more=("--no-enable-prefix-caching",)):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.log = pathlib.Path(folder) / "log"
        environment = dict(os.environ, VLLM_SERVER_DEV_MODE="1", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1",
                           VLLM_CPU_OMP_THREADS_BIND="nobind")
        self.process = subprocess.Popen([str(part) for part in [
            options.vllm, "serve", options.model, "--host", "127.0.0.1", "--port", self.port, "--dtype", "float32", "--max-model-len", 512,
            "--max-num-seqs", options.streams, *more]], stdout=self.log.open("w"), stderr=subprocess.STDOUT, env=environment)

    def wait(self):
        while True:
            if self.process.poll() is not None:
                raise SystemExit(self.log.read_text()[-4000:])
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def benchmark(options, server, folder, seed):
    """Tokens a second by vLLM's own client: as many prompts of as many random tokens, as many at once."""
    result = pathlib.Path(folder) / f"{seed}.json"
    command = [options.vllm, "bench", "serve", "--backend", "openai", "--host", "127.0.0.1", "--port", server.port, "--endpoint", "/v1/completions",
               "--model", options.model, "--dataset-name", "random", "--random-input-len", options.input_len, "--random-output-len", options.output_len,
               "--random-range-ratio", 0, "--num-prompts", options.prompts, "--max-concurrency", options.streams, "--ignore-eos", "--temperature", 1,
               "--seed", seed, "--save-result", "--result-filename", result.name, "--result-dir", folder]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=dict(os.environ, HF_HUB_OFFLINE="1"))
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    said = json.loads(result.read_text())
    return {"tokens": said["total_output_tokens"], "seconds": said["duration"], "tokens_per_second": said["output_throughput"],
            "completed": said["completed"]}


def beside_vllm(options):
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        server = Vllm(options, folder)
        try:
            server.wait()
            for number in range(options.rounds + 1):  # the first warms up
                def sampler():
                    return client_rounds(options, "--address", f"127.0.0.1:{server.port}", "--prompts", options.prompts, "--streams", options.streams,
                                         "--vocabulary", vocabulary, "--warm-up", 0)[0]

                def peer(seed=number):
                    return benchmark(options, server, folder, seed)
                first, second = (sampler, peer) if number % 2 else (peer, sampler)
                one, other = first(), second()
                if number == 0:
                    continue
                ours.append(one if first is sampler else other)
                theirs.append(other if first is sampler else one)
                print(f"ours {ours[-1]['tokens_per_second']:.1f} tokens/s, theirs {theirs[-1]['tokens_per_second']:.1f}", flush=True)
        finally:
            server.stop()
    version = re.search(r"\d\S*", subprocess.run([options.vllm, "--version"], capture_output=True, text=True).stdout.splitlines()[-1])
    ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(ours, theirs)]
    return {"vllm": version.group() if version else "", "prompts": options.prompts, "streams": options.streams, "input_len": options.input_len,
            "output_len": options.output_len, "sampler_over_benchmark": round(statistics.median(ratios), 4), "ratios": [round(r, 4) for r in ratios],
            "sampler": ours, "benchmark": theirs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", type=pathlib.Path)
    parser.add_argument("--vllm", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--name", default="model", help="of the model, for the record")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if options.vllm:
        results = beside_vllm(options)
        print(write_record(f"engine-client-vllm-{options.name}", f"bench/engine_client.py CLIENT --vllm VLLM --model DIR --name {options.name} --prompts {options.prompts} "
                           f"--streams {options.streams} --input-len {options.input_len} --output-len {options.output_len} --rounds {options.rounds}",
                           machine(), {"commit": commit, "results": results}))
        return
    streams = []
    for _ in range(options.rounds):
        streams += client_rounds(options, "--prompts", 1024, "--streams", 256)
    results = {"streams": 256, "tokens_per_second_of_a_stream": 50, "output_len": options.output_len,
               "share_of_a_core": round(statistics.median(one["share_of_a_core"] for one in streams), 4), "rounds": streams}
    print(write_record("engine-client-cost", f"bench/engine_client.py CLIENT --output-len {options.output_len} --rounds {options.rounds}", machine(),
                       {"commit": commit, "results": results}))


if __name__ == "__main__":
    main()
