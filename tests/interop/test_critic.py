"""A critic's values are those of transformers' and PEFT's token classifier of one label, which also reads the critics that we save."""
import json

import peft
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer

ARITH = ROOT / "models" / "arith"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load_classifier():
    return AutoModelForTokenClassification.from_pretrained(ARITH, num_labels=1, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture
def critic(tmp_path):
    torch.manual_seed(4)
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, task_type="TOKEN_CLS", target_modules=TARGETS)
    model = peft.get_peft_model(load_classifier(), config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "modules_to_save" in name:
                value.normal_(0.0, 0.5)
    model.save_pretrained(tmp_path / "critic", save_embedding_layers=False)
    return model


# With one new token for each prompt the value of a rollout's only trained row is that of the prompt, whatever is sampled.
def test_values_are_those_of_a_token_classifier(lockstep, critic, tmp_path):
    lines = (ARITH / "train.jsonl").read_text().splitlines()[:6]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    lockstep("train", "--hf-checkpoint", ARITH, "--prompt-data", tmp_path / "prompts.jsonl", "--input-key", "prompt", "--label-key",
             "label", "--rm-type", "number", "--rollout-batch-size", 6, "--num-rollout", 1, "--rollout-max-response-len", 1,
             "--advantage-estimator", "ppo", "--critic-load", tmp_path / "critic", "--critic-lr", 0, "--weight-decay", 0, "--lora-rank", 2,
             "--target-modules", "q_proj", "--save", tmp_path / "run", "--device", "cpu")
    tokenizer = AutoTokenizer.from_pretrained(ARITH)
    values = []
    with torch.no_grad():
        for line in lines:
            tokens = tokenizer(json.loads(line)["prompt"], return_tensors="pt", add_special_tokens=False).input_ids
            values.append(critic(tokens).logits[0, -1, 0].item())
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert max(abs(v) for v in values) > 0.1
    assert metrics["values"] == pytest.approx(sum(values) / len(values), abs=2e-5)

    saved = tmp_path / "run" / "iter_0000001" / "policies" / "critic"
    ours, theirs = load_file(saved / "adapter_model.safetensors"), load_file(tmp_path / "critic" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    again = peft.PeftModel.from_pretrained(load_classifier(), saved).eval()
    with torch.no_grad():
        tokens = torch.tensor([[5, 7, 11, 13]])
        assert torch.equal(again(tokens).logits, critic(tokens).logits)
