#!/usr/bin/env python3
"""Writes a Hugging Face directory with random bf16 weights for a config.json of the Qwen3 family: for timing loads.

    dummy_checkpoint.py CONFIG.json OUT_DIR [--shard-gb 4]
"""
import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shard-gb", type=float, default=4)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.config, options.out / "config.json")
    # Bits of one random block, repeated: drawing 8 billion numbers would take longer than what is to be timed.
    noise = torch.randn(1 << 22).mul_(0.02).to(torch.bfloat16)
    shards, shard, size = [], {}, 0
    for name, shape in shapes(config):
        count = 1
        for extent in shape:
            count *= extent
        tensor = torch.ones(shape, dtype=torch.bfloat16) if "norm" in name else noise.repeat(-(-count // noise.numel()))[:count].reshape(shape).clone()
        if shard and size + 2 * count > options.shard_gb * 1e9:
            shards.append(shard)
            shard, size = {}, 0
        shard[name], size = tensor, size + 2 * count
    shards.append(shard)
    index = {}
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, options.out / file, metadata={"format": "pt"})
        index.update({name: file for name in tensors})
    total = sum(t.numel() * 2 for s in shards for t in s.values())
    (options.out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))


if __name__ == "__main__":
    main()
