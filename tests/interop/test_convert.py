"""Megatron's layouts as Megatron-Bridge's own formulas split them, in PyTorch; and what diff says, against whole matrices."""
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file


def split_qkv(fused, heads, groups, head_dim):
    """Megatron-Bridge: rows of each group are its query heads, its key head, its value head."""
    per_group = heads // groups
    view = fused.view(heads + 2 * groups, head_dim, fused.shape[1])
    width = per_group + 2
    q = torch.cat([torch.arange(width * g, width * g + per_group) for g in range(groups)])
    k, v = torch.arange(width - 2, heads + 2 * groups, width), torch.arange(width - 1, heads + 2 * groups, width)
    return [view[rows].reshape(-1, fused.shape[1]) for rows in (q, k, v)]


def shape_of(family):
    config = json.loads((family / "config.json").read_text())
    heads = config["num_attention_heads"]
    return (config["num_hidden_layers"], heads, config.get("num_key_value_heads", heads),
            config.get("head_dim") or config["hidden_size"] // heads, config["hidden_size"], config["intermediate_size"])


def write_adapter(folder, tensors, **config):
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", **config}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_from_megatron(lockstep, family, dtype, tmp_path):
    layers, heads, groups, head_dim, width, ffn = shape_of(family)
    torch.manual_seed(1)
    qkv = (heads + 2 * groups) * head_dim
    modules = {"self_attention.linear_qkv": (qkv, width), "self_attention.linear_proj": (width, heads * head_dim),
               "mlp.linear_fc1": (2 * ffn, width), "mlp.linear_fc2": (width, ffn)}
    tensors = {}
    for layer in range(layers):
        for name, (out, depth) in modules.items():
            prefix = f"decoder.layers.{layer}.{name}.adapter."
            tensors[prefix + "linear_in.weight"] = torch.randn(3, depth).to(dtype)
            tensors[prefix + "linear_out.weight"] = torch.randn(out, 3).to(dtype)
    write_adapter(tmp_path / "megatron", tensors, r=3, lora_alpha=6,
                  target_modules=["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    lockstep("convert", "--to", "hf", "--hf-checkpoint", family, "--lora-adapter-path", tmp_path / "megatron", "--output",
             tmp_path / "hf")
    ours = load_file(tmp_path / "hf" / "adapter_model.safetensors")
    assert len(ours) == layers * 7 * 2
    for layer in range(layers):
        def megatron(name, layer=layer):
            return [tensors[f"decoder.layers.{layer}.{name}.adapter.linear_{side}.weight"] for side in ("in", "out")]

        def check(module, a, b, layer=layer):
            prefix = f"base_model.model.model.layers.{layer}.{module}."
            assert torch.equal(ours[prefix + "lora_A.weight"], a) and torch.equal(ours[prefix + "lora_B.weight"], b), prefix
        a, b = megatron("self_attention.linear_qkv")
        for name, rows in zip("qkv", split_qkv(b, heads, groups, head_dim)):
            check(f"self_attn.{name}_proj", a, rows)
        a, b = megatron("mlp.linear_fc1")
        for name, rows in zip(("gate", "up"), b.chunk(2)):
            check(f"mlp.{name}_proj", a, rows)
        check("self_attn.o_proj", *megatron("self_attention.linear_proj"))
        check("mlp.down_proj", *megatron("mlp.linear_fc2"))
    lockstep("convert", "--to", "megatron", "--hf-checkpoint", family, "--lora-adapter-path", tmp_path / "hf", "--output",
             tmp_path / "back")
    back = load_file(tmp_path / "back" / "adapter_model.safetensors")
    assert back.keys() == tensors.keys() and all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_diff(lockstep, tmp_path):
    torch.manual_seed(2)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    ranks, alphas = (4, 7), (8, 3)
    for i, (rank, alpha) in enumerate(zip(ranks, alphas)):
        write_adapter(tmp_path / str(i), {name + "A.weight": torch.randn(rank, 40), name + "B.weight": torch.randn(30, rank)},
                      r=rank, lora_alpha=alpha, target_modules=["q_proj"], use_rslora=i == 1)
    a, b = (load_file(tmp_path / str(i) / "adapter_model.safetensors") for i in (0, 1))
    x = 2 * a[name + "B.weight"].double() @ a[name + "A.weight"].double()
    y = 3 / math.sqrt(7) * b[name + "B.weight"].double() @ b[name + "A.weight"].double()
    done = lockstep.run("diff", tmp_path / "0", tmp_path / "1", "--json")
    assert done.returncode == 1, done.stderr
    row = json.loads(done.stdout)["rows"][0]
    wanted = {"norm_a": x.norm(), "norm_b": y.norm(), "norm_difference": (x - y).norm(),
              "cosine": (x * y).sum() / (x.norm() * y.norm())}
    for key, value in wanted.items():
        assert row[key] == pytest.approx(value.item(), rel=1e-5, abs=1e-7), key
    assert lockstep.run("diff", tmp_path / "0", tmp_path / "0").returncode == 0
