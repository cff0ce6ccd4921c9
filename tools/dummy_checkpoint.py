#!/usr/bin/env python3
"""Writes a Hugging Face directory with random bf16 weights for a config.json of the Qwen3 family: for timing loads.

    dummy_checkpoint.py CONFIG.json OUT_DIR [--shard-gb 2]
"""
import argparse
import array
import json
import multiprocessing
import pathlib
import random
import shutil


def shapes(c):
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    d, f = c["hidden_size"], c["intermediate_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (d,)
        yield p + "self_attn.q_proj.weight", (q, d)
        yield p + "self_attn.k_proj.weight", (kv, d)
        yield p + "self_attn.v_proj.weight", (kv, d)
        yield p + "self_attn.q_norm.weight", (c["head_dim"],)
        yield p + "self_attn.k_norm.weight", (c["head_dim"],)
        yield p + "self_attn.o_proj.weight", (d, q)
        yield p + "post_attention_layernorm.weight", (d,)
        yield p + "mlp.gate_proj.weight", (f, d)
        yield p + "mlp.up_proj.weight", (f, d)
        yield p + "mlp.down_proj.weight", (d, f)
    yield "model.norm.weight", (d,)
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", (c["vocab_size"], d)


def size_of(shape):
    count = 2
    for extent in shape:
        count *= extent
    return count


def bf16(values):
    bits = array.array("f", values).tobytes()
    upper = bytearray(len(bits) // 2)
    upper[0::2], upper[1::2] = bits[2::4], bits[3::4]
    return bytes(upper)


def write_shard(file, tensors, noise):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        end = offset + size_of(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb", buffering=0) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors:
            left, pattern = size_of(shape), bf16([1.0] * shape[-1]) if "norm" in name else noise
            while left:
                left -= out.write(pattern[:left])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shard-gb", type=float, default=2)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.config, options.out / "config.json")
    # One block of random numbers, repeated: drawing 8 billion would take longer than what is to be timed.
    generator = random.Random(0)
    noise = bf16([generator.gauss(0, 0.02) for _ in range(1 << 20)])
    shards, size = [[]], 0
    for name, shape in shapes(config):
        if shards[-1] and size + size_of(shape) > options.shard_gb * 1e9:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += size_of(shape)
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    writers = [multiprocessing.Process(target=write_shard, args=(options.out / file, tensors, noise))
               for file, tensors in zip(files, shards)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if any(writer.exitcode for writer in writers):
        raise SystemExit("a shard could not be written")
    index = {name: file for file, tensors in zip(files, shards) for name, _ in tensors}
    total = sum(size_of(shape) for tensors in shards for _, shape in tensors)
    (options.out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}))


if __name__ == "__main__":
    main()
