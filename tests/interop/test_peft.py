"""PEFT reads our adapters and gives our log-probabilities; we read PEFT's and give its."""
import json
import random

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

TOLERANCE = 2e-5  # absolute, of log-probabilities around 5; both sides compute in float32


def load_base(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def rows_for(model, count=4, seed=0):
    numbers = random.Random(seed)
    return [{"tokens": [numbers.randrange(model.config.vocab_size) for _ in range(numbers.randrange(5, 30))]}
            for _ in range(count)]


def peft_logprobs(model, rows):
    result = []
    with torch.no_grad():
        for row in rows:
            tokens = torch.tensor([row["tokens"]])
            logits = model(tokens).logits[0].double()
            result.append(torch.log_softmax(logits[:-1], -1).gather(1, tokens[0, 1:, None])[:, 0].tolist())
    return result


def assert_close(scored, wanted):
    for ours, theirs in zip(scored, wanted, strict=True):
        got = ours["logprobs"][1:]
        assert len(got) == len(theirs)
        assert max(abs(a - b) for a, b in zip(got, theirs)) < TOLERANCE


# Modules chosen by name are saved by full names: PEFT must find these and no others.
@pytest.mark.parametrize("targets", ["all-linear", "model.layers.0.self_attn.q_proj,layers.1.mlp.down_proj"],
                         ids=["all", "names"])
@pytest.mark.parametrize("lora_type", ["lora", "canonical_lora"])
def test_peft_reads_our_adapter(lockstep, family, lora_type, targets, tmp_path):
    model = load_base(family)
    rows = rows_for(model)
    data = tmp_path / "sft.jsonl"
    data.write_text("".join(json.dumps({**row, "loss_mask": [0] + [1] * (len(row["tokens"]) - 1)}) + "\n" for row in rows))
    lockstep("sft", "--hf-checkpoint", family, "--prompt-data", data, "--lora-rank", 4, "--lora-alpha", 8, "--lora-type",
             lora_type, "--target-modules", targets, "--lr", "2e-2", "--global-batch-size", 2, "--num-epoch", 4,
             "--save", tmp_path / "run")
    adapter = tmp_path / "run" / "iter_0000008" / "lora_adapter"
    base = peft_logprobs(model, rows)
    model = peft.PeftModel.from_pretrained(model, adapter).eval()
    held = {name.split(".lora_A")[0] for name in model.state_dict() if ".lora_A" in name}
    stored = {name.split(".lora_A")[0] for name in load_file(adapter / "adapter_model.safetensors") if ".lora_A" in name}
    assert held == stored
    adapted = peft_logprobs(model, rows)
    moved = max(abs(a - b) for x, y in zip(base, adapted) for a, b in zip(x, y))
    assert moved > 1e-2, "the adapter must matter, or this test shows nothing"
    assert_close(lockstep.score(family, rows, tmp_path / "score", adapter), adapted)


@pytest.mark.parametrize("options", [
    {},
    {"use_rslora": True},
    {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    {"target_modules": r".*\.layers\.1\.mlp\.(up|down)_proj"},
    {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"layers.0.self_attn.k_proj": 32}},
], ids=["plain", "rslora", "layers", "regex", "patterns"])
def test_we_read_pefts_adapter(lockstep, family, options, tmp_path):
    model = load_base(family)
    rows = rows_for(model, seed=1)
    torch.manual_seed(3)
    config = peft.LoraConfig(r=6, lora_alpha=12, init_lora_weights=False, task_type="CAUSAL_LM",
                             **{"target_modules": "all-linear", **options})
    adapted = peft.get_peft_model(model, config).eval()
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    assert_close(lockstep.score(family, rows, tmp_path / "score", tmp_path / "adapter"), peft_logprobs(adapted, rows))


def test_base_alone(lockstep, family, tmp_path):
    model = load_base(family)
    rows = rows_for(model, seed=2)
    assert_close(lockstep.score(family, rows, tmp_path), peft_logprobs(model, rows))
