"""Merged weights are those of PEFT's merge_and_unload, and transformers reads the directory."""
import json

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

OPTIONS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "layers": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    "regex": {"target_modules": r".*\.layers\.1\.mlp\.(up|down)_proj"},
    "patterns": {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"layers.0.self_attn.k_proj": 32}},
    "dora": {"use_dora": True},
    "bias": {"target_modules": ["q_proj", "down_proj"], "bias": "all"},
    "lora_only": {"target_modules": ["q_proj", "down_proj"], "bias": "lora_only"},
    "saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}


def adapter_and_merged(path, dtype, options, folder):
    """An adapter of random values, saved, and PEFT's own merged weights by their names in the file."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    torch.manual_seed(3)
    config = peft.LoraConfig(r=6, lora_alpha=12, init_lora_weights=False, task_type="CAUSAL_LM",
                             **{"target_modules": "all-linear", **options})
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_embedding" in name:  # normal in PEFT: an update of a weight's size, not a thousand times that
            parameter.data *= 0.1
        elif parameter.requires_grad and "lora_A" not in name and "lora_B" not in name:
            parameter.data *= 1 + 0.3 * torch.rand_like(parameter)
            parameter.data += 0.05 * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    if adapted.config.tie_word_embeddings:  # merging in place would change the embedding and the head together
        untie(adapted)
    rounded_once = embeddings_rounded_once(adapted)
    return adapted.merge_and_unload().state_dict() | rounded_once


def embeddings_rounded_once(adapted):
    """PEFT's Linear.merge adds an update in float32; its Embedding.merge rounds it to the weight's type before. This is the sum
    that is rounded once, made of the same update."""
    weights = {}
    for name, module in adapted.get_base_model().named_modules():
        if isinstance(module, peft.tuners.lora.layer.Embedding):
            weight = module.get_base_layer().weight.detach()
            weights[f"{name}.weight"] = (weight.float() + module.get_delta_weight("default").float()).to(weight.dtype)
    return weights


def untie(adapted):
    """Gives the head of a tied model memory of its own, so that merging changes what the adapter changes."""
    head = adapted.get_base_model().lm_head
    head = getattr(head, "base_layer", getattr(head, "original_module", head))
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


def weights_of(folder):
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}


def assert_rounded_alike(ours, theirs, name):
    """Within a step of the type: the sums behind both are made in another order."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
    steps = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[ours.dtype]
    a, b = ours.double(), theirs.double()
    assert ((a - b).abs() <= steps * b.abs().clamp(min=2.0**-4)).all(), f"{name}: {(a - b).abs().max()}"
    if ours.dtype != torch.float32:
        assert (ours != theirs).double().mean() < 0.01, name  # a tie is rare


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_merge_and_unload(lockstep, family, dtype, options, tmp_path):
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(family, dtype=getattr(torch, dtype)).save_pretrained(base)
    theirs = adapter_and_merged(base, getattr(torch, dtype), options, tmp_path / "adapter")
    lockstep("merge", "--hf-checkpoint", base, "--lora-adapter-path", tmp_path / "adapter", "--output", tmp_path / "merged",
             "--max-shard-size", "40KB")
    ours = weights_of(tmp_path / "merged")
    tied = json.loads((tmp_path / "merged/config.json").read_text()).get("tie_word_embeddings", False)
    assert set(ours) == set(theirs) - ({"lm_head.weight"} if tied else set())
    for name, tensor in ours.items():
        assert_rounded_alike(tensor, theirs[name], name)
    loaded, missing = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto", output_loading_info=True)
    assert not missing["missing_keys"] and not missing["unexpected_keys"]
    assert loaded.dtype == getattr(torch, dtype)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, ours.get(name, tensor)), name
