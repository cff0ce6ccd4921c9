"""How fast `lockstep merge` is beside copying the same files, in turn: bench/merge.py LOCKSTEP [--shape qwen3-0.6b | --model DIR]

With --model, which has a tokenizer, `lockstep export` of merged GGUF files of both sizes is timed, too. All are timed until the bytes are on the disk: a merge syncs what it writes, the copy (cp -r) is followed by an fsync of every file.
The base (without --model) and the adapter have random values and lie in --folder; the base is read once before, so that neither side waits for it.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import time

from record import ROOT, write_record

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_adapter(folder, config, rank):
    """A PEFT directory on all linear modules, of one block of random f32 numbers, repeated."""
    width, ffn, head = config["hidden_size"], config["intermediate_size"], config.get("head_dim")
    head = head or width // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    sizes = {"q_proj": (q, width), "k_proj": (kv, width), "v_proj": (kv, width), "o_proj": (width, q),
             "gate_proj": (ffn, width), "up_proj": (ffn, width), "down_proj": (width, ffn)}
    generator = random.Random(1)
    noise = struct.pack(f"<{1 << 18}f", *(generator.gauss(0, 0.02) for _ in range(1 << 18)))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for layer in range(config["num_hidden_layers"]):
        for name in TARGETS:
            block = "self_attn" if name in TARGETS[:4] else "mlp"
            out, depth = sizes[name]
            for factor, shape in (("A", [rank, depth]), ("B", [out, rank])):
                end = offset + 4 * shape[0] * shape[1]
                header[f"base_model.model.model.layers.{layer}.{block}.{name}.lora_{factor}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
                offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    with open(folder / "adapter_model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        while offset:
            offset -= out.write(noise[:offset])
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": TARGETS, "task_type": "CAUSAL_LM"}))


def synced_copy(base, target):
    subprocess.run(["cp", "-r", "--reflink=never", base, target], check=True)
    for path in [*target.iterdir(), target]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def timed(work, target):
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    start = time.monotonic()
    peak = work()
    return time.monotonic() - start, peak


def peak_of(*command):
    """Runs a command; its largest resident size in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed: {status}")
    return usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--shape", default="qwen3-0.6b", help="a folder of bench/shapes")
    parser.add_argument("--model", type=pathlib.Path, help="a model directory instead")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for the files; removed afterwards")
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    name = options.model.name if options.model else options.shape
    config_file = (options.model or ROOT / "bench/shapes" / options.shape) / "config.json"
    base, adapter, target = (options.folder / name for name in ("base", "adapter", "target"))
    options.folder.mkdir(parents=True)
    try:
        if options.model:
            shutil.copytree(options.model, base)
        else:
            subprocess.run([sys.executable, ROOT / "tools/dummy_checkpoint.py", config_file, base], check=True)
        write_adapter(adapter, json.loads(config_file.read_text()), options.rank)
        size = sum(path.stat().st_size for path in base.iterdir())
        merge = [options.lockstep, "merge", "--hf-checkpoint", base, "--lora-adapter-path", adapter, "--output", target]
        for path in base.iterdir():
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)  # the largest size of a child counts that of its parent
        exports = {dtype: [options.lockstep, "export", "--format", "gguf", "--dtype", dtype, *merge[2:]]
                   for dtype in ("bf16", "q8_0")} if options.model else {}
        merges, copies, peaks = [], [], []
        export_seconds = {dtype: [] for dtype in exports}
        for _ in range(options.rounds):
            copies.append(timed(lambda: synced_copy(base, target), target)[0])
            seconds, peak = timed(lambda: peak_of(*merge), target)
            merges.append(seconds)
            peaks.append(peak)
            for dtype, command in exports.items():
                export_seconds[dtype].append(timed(lambda: peak_of(*command), target)[0])
                target.unlink()
    finally:
        shutil.rmtree(options.folder)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    config = json.loads(config_file.read_text())
    results = {"bytes": size, "largest_tensor_bytes": 2 * config["vocab_size"] * config["hidden_size"],
               "adapter_rank": options.rank,
               "merge_mb_s": round(size / 1e6 / statistics.median(merges), 1),
               "copy_mb_s": round(size / 1e6 / statistics.median(copies), 1),
               "merge_over_copy": round(statistics.median(c / m for c, m in zip(copies, merges)), 3),
               "merge_seconds": [round(s, 2) for s in merges], "copy_seconds": [round(s, 2) for s in copies],
               "merge_peak_bytes": max(peaks)}
    for dtype, values in export_seconds.items():
        results[f"export_gguf_{dtype}_over_copy"] = round(statistics.median(c / s for c, s in zip(copies, values)), 3)
        results[f"export_gguf_{dtype}_seconds"] = [round(s, 2) for s in values]
    print(json.dumps(results))
    print(write_record(f"merge-{name}", f"bench/merge.py LOCKSTEP {'--model' if options.model else '--shape'} {name} --rank {options.rank} "
                       f"--rounds {options.rounds} --folder DIR", json.loads(options.machine),
                       {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
