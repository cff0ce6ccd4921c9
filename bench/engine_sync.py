"""How long a new version takes to reach a vLLM, by our run and by TRL's own path, beside a publish to the engine of the same process, into one record.

    bench/engine_sync.py LOCKSTEP --vllm VLLM --model DIR --name NAME --data FILE --input-key KEY --label-key KEY --rm-type TYPE [--rollouts 10]

One vLLM on the CPU serves all. Ours: `lockstep train` with --sync-strategy lora_adapter; `publish_ms` of its metrics is writing (with fsync), loading, and comparing the
server's log-probs with the trainer's (`sync_check_ms`), which TRL does not do. TRL's: what its asynchronous trainer does with an adapter of the same shape: save_pretrained,
/pause?mode=keep, /v1/load_lora_adapter, /resume, /v1/unload_lora_adapter of the one before, by its own client. Run with the Python of VLLM's environment; TRL's folder on PYTHONPATH.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

from engine_client import Vllm, machine
from record import ROOT, write_record

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def train(options, save, *more):
    command = [options.lockstep, "train", "--hf-checkpoint", options.model, "--prompt-data", options.data, "--input-key", options.input_key, "--label-key",
               options.label_key, "--rm-type", options.rm_type, "--num-rollout", options.rollouts, "--rollout-batch-size", 2, "--n-samples-per-prompt", 2,
               "--rollout-max-response-len", 8, "--global-batch-size", 4, "--lr", "1e-3", "--lora-rank", options.rank, "--lora-alpha", options.rank,
               "--target-modules", "all-linear", "--save", save, *(["--apply-chat-template"] if options.chat else []), *more]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    return [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]


def trl_syncs(options, address, folder):
    """Milliseconds of each, and of its parts."""
    import torch
    from accelerate import PartialState
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    PartialState(cpu=True)  # TRL's logger wants it
    base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=options.rank, lora_alpha=options.rank, target_modules=TARGETS, init_lora_weights=False))
    client = VLLMClient(f"http://{address}")
    client.wait_for_server_ready()
    whole, parts = [], {"save": [], "pause": [], "load": [], "resume": [], "unload": []}
    for version in range(options.rollouts + 1):
        steps = {"save": lambda: model.save_pretrained(folder / f"v{version}"), "pause": client.pause,
                 "load": lambda: client.load_lora_adapter(f"trl-v{version}", str(folder / f"v{version}")), "resume": client.resume,
                 "unload": lambda: version and client.unload_lora_adapter(f"trl-v{version - 1}")}
        began = time.monotonic()
        for name, step in steps.items():
            start = time.monotonic()
            step()
            if version:  # the first warms up
                parts[name].append(1000 * (time.monotonic() - start))
        if version:
            whole.append(1000 * (time.monotonic() - began))
    client.unload_lora_adapter(f"trl-v{options.rollouts}")
    return whole, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--vllm", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True, help="of the model, for the record")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--input-key", default="prompt")
    parser.add_argument("--label-key", default="label")
    parser.add_argument("--rm-type", default="number")
    parser.add_argument("--chat", action="store_true", help="--apply-chat-template")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=10)
    options = parser.parse_args()
    options.streams = 16  # of the server
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server = Vllm(options, folder, ["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "4", "--max-lora-rank", str(max(8, options.rank)),
                                        "--logprobs-mode", "processed_logprobs"])
        try:
            server.wait()
            address = f"127.0.0.1:{server.port}"
            ours = train(options, folder / "vllm", "--rollout-engine", "vllm", "--rollout-external-engine-addrs", address)
            whole, parts = trl_syncs(options, address, folder / "trl")
        finally:
            server.stop()
        local = train(options, folder / "local")

    def median(values):
        return round(statistics.median(values), 3)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    loads = [line["publish_ms"] - line["sync_check_ms"] for line in ours]
    results = {"rank": options.rank, "syncs": options.rollouts, "sync_ms": median(line["publish_ms"] for line in ours), "sync_without_check_ms": median(loads),
               "check_ms": median(line["sync_check_ms"] for line in ours), "trl_ms": median(whole), "trl_parts_ms": {part: median(ms) for part, ms in parts.items()},
               "without_check_over_trl": round(statistics.median(loads) / statistics.median(whole), 3), "local_publish_ms": median(line["publish_ms"] for line in local),
               "all_sync_ms": [round(line["publish_ms"], 2) for line in ours], "all_trl_ms": [round(ms, 2) for ms in whole]}
    print(json.dumps(results))
    print(write_record(f"engine-sync-{options.name}", f"bench/engine_sync.py LOCKSTEP --vllm VLLM --model DIR --name {options.name} --data FILE --rank {options.rank} "
                       f"--rollouts {options.rollouts}", machine(), {"commit": commit, "results": results}))


if __name__ == "__main__":
    main()
