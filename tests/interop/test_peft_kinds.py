"""Every kind of LoRA that PEFT trains, in both directions: log-probabilities, gradients (the first step's norm) and 20 steps of AdamW."""
import json
import random

import peft
import pytest
import torch
from safetensors.torch import load_file
from test_peft import assert_close, load_base, peft_logprobs, rows_for

FAMILIES = ["llama3", "qwen2", "qwen3"]
LOSS_TOLERANCE, NORM_TOLERANCE, ADAPTER_TOLERANCE = 1e-5, 1e-4, 1e-4  # absolute; relative; relative, Frobenius
STEPS, BATCH, LR = 20, 2, 2e-3

# PEFT's options, and the same asked of Lockstep.
KINDS = {
    "plain": ({}, []),
    "dora": ({"use_dora": True}, ["--use-dora"]),
    "bias-all": ({"bias": "all"}, ["--lora-bias", "all"]),
    "bias-lora_only": ({"bias": "lora_only", "target_modules": ["q_proj", "down_proj"]}, ["--lora-bias", "lora_only"]),
    "saved": ({"modules_to_save": ["embed_tokens", "lm_head"]}, ["--modules-to-save", "embed_tokens,lm_head"]),
    "saved-head": ({"modules_to_save": ["lm_head"]}, ["--modules-to-save", "lm_head"]),
    "head": ({"target_modules": ["q_proj", "lm_head"]}, []),
    "embedding": ({"target_modules": ["v_proj", "embed_tokens"]}, []),
    "dora-head": ({"use_dora": True, "target_modules": ["o_proj", "lm_head"]}, ["--use-dora"]),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    import conftest
    return conftest.GOLDEN / request.param


def peft_adapter(model, options, init=False):
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=init, task_type="CAUSAL_LM",
                             **{"target_modules": "all-linear", **options})
    return peft.get_peft_model(model, config)


def move(adapted):
    """What begins as the base's, away from it."""
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and ".lora_A." not in name and ".lora_B." not in name:
            parameter.data *= 1 + 0.1 * torch.rand_like(parameter)


def write_rows(path, rows):
    path.write_text("".join(json.dumps({**row, "loss_mask": [0] + [1] * (len(row["tokens"]) - 1)}) + "\n" for row in rows))
    return path


def train_ours(lockstep, family, rows, folder, *arguments):
    data = write_rows(folder / "sft.jsonl", rows)
    lockstep("sft", "--hf-checkpoint", family, "--prompt-data", data, "--lr", LR, "--global-batch-size", BATCH, "--num-epoch",
             STEPS * BATCH // len(rows), "--weight-decay", "0.01", "--adam-beta2", "0.999", "--clip-grad", 0, "--save", folder / "run",
             *arguments)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line and "grad_norm" in line]
    assert len(steps) == STEPS
    return steps, folder / "run" / f"iter_{STEPS:07}" / "lora_adapter"


def train_theirs(adapted, rows):
    """Losses and gradient norms of the same steps, in the model's type: the mean over rows of the mean of -logprob."""
    adapted.train()
    named = [(name, p) for name, p in adapted.named_parameters() if p.requires_grad]
    parameters = [p for _, p in named]
    # transformers' Trainer.get_decay_parameter_names leaves out what has "bias" in its name.
    groups = [{"params": [p for name, p in named if "bias" not in name]},
              {"params": [p for name, p in named if "bias" in name], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        begin = step * BATCH % len(rows)
        batch = rows[begin:begin + BATCH]
        loss = 0
        for row in batch:
            tokens = torch.tensor([row["tokens"]])
            logprobs = torch.log_softmax(adapted(tokens).logits[0, :-1].double(), -1)
            loss = loss - logprobs.gather(1, tokens[0, 1:, None]).mean() / len(batch)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.sqrt(sum((p.grad.double()**2).sum() for p in parameters if p.grad is not None)).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("kind", KINDS)
def test_we_read_pefts(lockstep, family, kind, tmp_path):
    model = load_base(family)
    rows = rows_for(model, seed=1)
    adapted = peft_adapter(model, KINDS[kind][0])
    move(adapted)
    adapted.eval().save_pretrained(tmp_path / "adapter")
    assert_close(lockstep.score(family, rows, tmp_path / "score", tmp_path / "adapter"), peft_logprobs(adapted, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_peft_reads_ours(lockstep, family, kind, tmp_path):
    options, flags = KINDS[kind]
    model = load_base(family)
    rows = rows_for(model, seed=2)
    targets = ",".join(options.get("target_modules", ["all-linear"]))
    _, adapter = train_ours(lockstep, family, rows, tmp_path, "--lora-rank", 4, "--lora-alpha", 8, "--lora-type", "canonical_lora",
                            "--target-modules", targets, *flags)
    stored = load_file(adapter / "adapter_model.safetensors")
    adapted = peft.PeftModel.from_pretrained(model, adapter).eval()
    theirs = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    assert set(theirs) == set(stored)
    assert all(torch.equal(theirs[name], stored[name]) for name in stored)
    assert_close(lockstep.score(family, rows, tmp_path / "score", adapter), peft_logprobs(adapted, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_curve(lockstep, family, kind, tmp_path):
    model = load_base(family)
    rows = rows_for(model, count=8, seed=4)
    adapted = peft_adapter(model, KINDS[kind][0])
    adapted.save_pretrained(tmp_path / "adapter")
    steps, adapter = train_ours(lockstep, family, rows, tmp_path, "--lora-adapter-path", tmp_path / "adapter")
    losses, norms = train_theirs(adapted, rows)
    assert sum(losses[-4:]) < sum(losses[:4]) - 0.1, "it must learn, or this test shows nothing"  # an epoch has four steps
    for ours, loss, norm in zip(steps, losses, norms, strict=True):
        assert abs(ours["loss"] - loss) < LOSS_TOLERANCE
        assert abs(ours["grad_norm"] - norm) < NORM_TOLERANCE * norm
    theirs, stored = trained_tensors(adapted), load_file(adapter / "adapter_model.safetensors")
    apart = {name for name in theirs if distance(stored[name], theirs[name]) >= ADAPTER_TOLERANCE}
    if not apart:
        return
    # AdamW divides by the gradient's own size, so that of a gradient that is nearly 0 (k's bias, of which softmax takes most away)
    # it makes whole steps of what rounding leaves. Training in float64 tells how much that is: ours must be as near to it.
    exact = peft.PeftModel.from_pretrained(load_base(family), tmp_path / "adapter", is_trainable=True).double()
    train_theirs(exact, rows)
    for name, tensor in trained_tensors(exact).items():
        if name in apart:
            assert distance(stored[name], tensor) < 2 * distance(theirs[name], tensor), name


def trained_tensors(adapted):
    return peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)


def distance(ours, theirs):
    return (ours.double() - theirs.double()).norm() / theirs.double().norm()


# W + scale (B A - B0 A0) here, the residual base there. Both begin with our B0 A0: the last of the singular vectors that are taken
# may lie close to the first that is not, so that rounding turns it. That ours is the best of its rank is shown by what it leaves.
@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_initializations_that_change_the_base(lockstep, family, init, tmp_path):
    model = load_base(family)
    rows = rows_for(model, count=8, seed=5)
    steps, adapter = train_ours(lockstep, family, rows, tmp_path, "--lora-rank", 4, "--lora-alpha", 8, "--lora-type", "canonical_lora",
                                "--target-modules", "all-linear", "--init-lora-weights", init)
    saved = json.loads((adapter / "adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"], saved["init_lora_weights"]) == (8, 16, True)
    plain = peft.PeftModel.from_pretrained(load_base(family), adapter).eval()
    assert_close(lockstep.score(family, rows, tmp_path / "score", adapter), peft_logprobs(plain, rows))
    stored = load_file(adapter / "adapter_model.safetensors")
    residual = peft_adapter(model, {})
    for name, module in residual.named_modules():
        if not isinstance(module, peft.tuners.lora.layer.Linear):
            continue
        a0, b0 = stored[f"{name}.lora_A.weight"][4:], -stored[f"{name}.lora_B.weight"][:, 4:]
        weight = module.get_base_layer().weight.data
        if init == "pissa":
            best = torch.linalg.svdvals(weight.double())[4:].norm()
            assert abs((weight.double() - 2 * b0.double() @ a0.double()).norm() - best) < 1e-5 * best, name
        weight -= 2 * b0 @ a0
        module.lora_A["default"].weight.data.copy_(a0)
        module.lora_B["default"].weight.data.copy_(b0)
    losses, norms = train_theirs(residual, rows)
    for ours, loss, norm in zip(steps, losses, norms, strict=True):
        assert abs(ours["loss"] - loss) < LOSS_TOLERANCE
        assert abs(ours["grad_norm"] - norm) < NORM_TOLERANCE * norm


# Means and deviations of A and B over all modules, and the distributions by a two-sample Kolmogorov-Smirnov distance.
@pytest.mark.parametrize("init", ["true", "false", "gaussian", "orthogonal"])
def test_initializations_are_distributed_as_pefts(lockstep, init, tmp_path):
    import conftest
    family = conftest.GOLDEN / "llama3"
    model = load_base(family)
    rows = rows_for(model)
    data = write_rows(tmp_path / "sft.jsonl", rows)
    lockstep("sft", "--hf-checkpoint", family, "--prompt-data", data, "--lr", 0, "--global-batch-size", 4, "--num-epoch", 1,
             "--save", tmp_path / "run", "--lora-rank", 8, "--lora-type", "canonical_lora", "--target-modules", "all-linear",
             "--init-lora-weights", init)
    ours = load_file(tmp_path / "run/iter_0000001/lora_adapter/adapter_model.safetensors")
    torch.manual_seed(random.randrange(1 << 30))
    config = peft.LoraConfig(r=8, init_lora_weights={"true": True, "false": False}.get(init, init), target_modules="all-linear")
    theirs = peft.get_peft_model_state_dict(peft.get_peft_model(model, config))
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        a, b = (t.flatten().double().sort().values for t in (ours[name], tensor))
        if not b.any():
            assert not a.any(), name
            continue
        grid = torch.cat([a, b])
        distance = (torch.searchsorted(a, grid, right=True) - torch.searchsorted(b, grid, right=True)).abs().max() / len(a)
        assert distance < 2.3 * (2 / len(a))**0.5, f"{name}: {distance}"  # 1 in 20,000 by chance; orthogonal ones are dependent
