#!/usr/bin/env python3
"""Writes the golden data of tests/golden/: tiny random models of each family, adapters, and what
transformers + PEFT compute with them in float32.

  python tools/golden/tokenizer_cases.py --tokenizer <SmolLM2 tokenizer.json> --out tests/golden/tokenizer   (first)
  python tools/golden/chat_cases.py --out tests/golden/chat                                                 (first)
  python tools/golden/make_goldens.py --out tests/golden                  write every case and MANIFEST.json
  python tools/golden/make_goldens.py --out tests/golden --only qwen3     write one case, and MANIFEST.json
  python tools/golden/make_goldens.py --out tests/golden --manifest       write MANIFEST.json only
  python tools/golden/make_goldens.py --out tests/golden --check          compare the files with MANIFEST.json (needs no torch)

Needs torch, transformers, peft, safetensors; MANIFEST.json names the versions that wrote the committed files.
Every random number is drawn from (SEED, case, tensor name). Models, adapters, tokens, c and d come out the same
everywhere; computed values may differ in the last bits on another CPU, because torch picks kernels by CPU.

A case is a Hugging Face model directory with, beside the model:
  adapter/               PEFT directory: r 4, alpha 8, all seven projections, A and B nonzero
  adapter_<name>/        further PEFT directories; `dora`, `bias`, `modules_to_save` are ones Lockstep must refuse
  expected.safetensors   F32 except tokens; i = 0, 1, 2 (T = 24, 17, 9), <key> as in adapter_model.safetensors
    tokens.i [T] I32
    logits_base.i, logits_lora.i [T, V]            adapter off, on
    logprobs_lora.i, entropy_lora.i [T-1]          of the distribution at position t, for token t+1; temperature 1
    grad.<key>, grad_norm [1]                      loss = mean over samples of the mean over t of -logprob
    rl.c.i, rl.d.i, rl.logprobs.i, rl.entropy.i [T-1], rl.grad.<key>
                                                   L = sum of c_t logprob_t + d_t entropy_t, logits divided by 1.25
    curve.loss, curve.grad_norm [20], final.<key>  20 steps from adapter/: the three samples as one batch, the loss of
                                                   grad.*, clip_grad_norm 1.0 (norms are before clipping), AdamW of STEP
    curve_pertoken.loss, curve_pertoken.grad_norm  llama3 only: loss = sum over all tokens / number of target tokens
    extra.<name>.logits.0                          with adapter_<name>/ in place of adapter/
Log-probs and entropies are computed in float64 from the float32 logits. MANIFEST.json "noise" holds the distance between
these float32 values and the same computation in float64: the part of a disagreement that is float32 itself. Its logits and
gradients are max|a-b| / max|b| per tensor (the worst tensor); losses and log-probs are absolute.
"""
import argparse
import contextlib
import hashlib
import json
import pathlib
import shutil
import sys
import tempfile
import types

from cases import (CONFIGS, EXTRA_ADAPTERS, LENGTHS, MAX_SHARD, PROJECTIONS, REFUSED_ADAPTERS, RL_TEMPERATURE, SEED, STEP,
                   STEPS)


def digest(path):
    return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def check(out):
    manifest = json.loads((out / "MANIFEST.json").read_text())
    wrong = []
    for name, want in manifest["files"].items():
        path = out / name
        if not path.is_file():
            wrong.append(f"{name}: missing")
        elif digest(path) != want:
            wrong.append(f"{name}: got {digest(path)}, wanted {want}")
    print("\n".join(wrong) or f"{len(manifest['files'])} files agree with MANIFEST.json")
    return 1 if wrong else 0


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def generator(torch, *names):
    key = hashlib.sha256("/".join((str(SEED),) + names).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)


def draw(torch, shape, std, *names):
    return torch.randn(shape, generator=generator(torch, *names), dtype=torch.float64).mul(std).float()


def randomize_base(torch, model, case):
    # q and k are drawn wider so that attention is far from uniform and a wrong RoPE or mask shows.
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            u = torch.rand(p.shape, generator=generator(torch, case, name), dtype=torch.float64)
            value = (0.8 + 0.4 * u).float()
        elif name.endswith(".bias"):
            value = draw(torch, p.shape, 0.3, case, name)
        elif "embed_tokens" in name or "lm_head" in name:
            value = draw(torch, p.shape, 0.25, case, name)
        else:
            gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
            value = draw(torch, p.shape, gain * p.shape[1] ** -0.5, case, name)
        p.data.copy_(value)


def randomize_adapter(torch, model, case, adapter):
    for name, p in model.named_parameters():
        if "lora_A" in name:
            p.data.copy_(draw(torch, p.shape, p.shape[1] ** -0.5, case, adapter, name))
        elif "lora_B" in name:
            p.data.copy_(draw(torch, p.shape, 0.05, case, adapter, name))
        elif p.requires_grad:  # DoRA magnitudes, biases, modules_to_save: different from the base, so ignoring them shows
            p.data.mul_(1 + draw(torch, p.shape, 0.1, case, adapter, name))


def write_model(case, directory):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    config = CONFIGS[case]
    write_json(directory / "config.json", config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    randomize_base(torch, model, case)
    model.to(getattr(torch, config.get("torch_dtype") or config["dtype"]))
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, max_shard_size=MAX_SHARD.get(case, "1GB"))
        for path in sorted(pathlib.Path(scratch).iterdir()):
            if path.name != "config.json":
                shutil.copyfile(path, directory / path.name)


def load_base(directory):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def load_adapter(directory, name):
    from peft import PeftModel
    return PeftModel.from_pretrained(load_base(directory), directory / name, is_trainable=True).eval()


def write_adapter(case, directory, name, **options):
    import torch
    from peft import LoraConfig, get_peft_model
    config = LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options)
    model = get_peft_model(load_base(directory), config)
    randomize_adapter(torch, model, case, name)
    target = directory / name
    model.peft_config["default"].base_model_name_or_path = f"lockstep/golden-{case}"
    # False: "auto" would look the base model up on the network, and no adapter here targets an embedding.
    model.save_pretrained(target, save_embedding_layers=False)
    (target / "README.md").unlink(missing_ok=True)
    # PEFT writes sets in the order of Python's hash seed.
    saved = json.loads((target / "adapter_config.json").read_text())
    if isinstance(saved["target_modules"], list):
        saved["target_modules"] = sorted(saved["target_modules"])
    (target / "adapter_config.json").write_text(json.dumps(saved, indent=2, sort_keys=True))


def logits_of(model, tokens):
    return model(input_ids=tokens[None].long(), use_cache=False).logits[0]


def head(torch, logits, tokens, temperature=1.0):
    """Per position t < T-1: log p(token t+1), entropy; float64."""
    log_p = torch.log_softmax(logits[:-1].double() / temperature, dim=-1)
    logprob = log_p.gather(-1, tokens[1:, None].long())[:, 0]
    return logprob, -(log_p.exp() * log_p).sum(-1)


def lora_parameters(model):
    return {n.replace(".default.", "."): p for n, p in model.named_parameters() if p.requires_grad}


def per_sample_loss(losses):
    return sum(l.mean() for l in losses) / len(losses)


def per_token_loss(losses):
    return sum(l.sum() for l in losses) / sum(l.numel() for l in losses)


def batch_loss(torch, model, samples, reduce):
    return reduce([-head(torch, logits_of(model, t), t)[0] for t in samples])


def gradients(torch, model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {k: p.grad.clone() for k, p in lora_parameters(model).items()}


def train(torch, model, samples, reduce):
    parameters = list(lora_parameters(model).values())
    optimizer = torch.optim.AdamW(parameters, **STEP)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = batch_loss(torch, model, samples, reduce)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), torch.tensor(norms), {k: p.data.clone() for k, p in lora_parameters(model).items()}


def compute(case, directory, prepare=lambda model: model):
    """Every expected value. `prepare` may change the arithmetic of a freshly loaded model."""
    import torch
    model = prepare(load_adapter(directory, "adapter"))
    e = {}
    samples = [torch.randint(0, CONFIGS[case]["vocab_size"], (n,), generator=generator(torch, case, "tokens", str(i)),
                             dtype=torch.int32) for i, n in enumerate(LENGTHS)]
    rl = 0
    for i, tokens in enumerate(samples):
        e[f"tokens.{i}"] = tokens
        with torch.no_grad(), model.disable_adapter():
            e[f"logits_base.{i}"] = logits_of(model, tokens)
        logits = logits_of(model, tokens)
        e[f"logits_lora.{i}"] = logits.detach()
        logprob, entropy = head(torch, logits.detach(), tokens)
        e[f"logprobs_lora.{i}"], e[f"entropy_lora.{i}"] = logprob, entropy
        c = draw(torch, (len(tokens) - 1,), 1.0, case, "c", str(i))
        d = draw(torch, (len(tokens) - 1,), 1.0, case, "d", str(i))
        logprob, entropy = head(torch, logits, tokens, RL_TEMPERATURE)
        rl = rl + (c * logprob + d * entropy).sum()
        e[f"rl.c.{i}"], e[f"rl.d.{i}"] = c, d
        e[f"rl.logprobs.{i}"], e[f"rl.entropy.{i}"] = logprob.detach(), entropy.detach()
    e.update({f"rl.grad.{k}": g for k, g in gradients(torch, model, rl).items()})
    grad = gradients(torch, model, batch_loss(torch, model, samples, per_sample_loss))
    e.update({f"grad.{k}": g for k, g in grad.items()})
    e["grad_norm"] = torch.sqrt(sum(g.double().square().sum() for g in grad.values()))[None]
    e["curve.loss"], e["curve.grad_norm"], final = train(torch, model, samples, per_sample_loss)
    e.update({f"final.{k}": p for k, p in final.items()})
    if case == "llama3":
        again = prepare(load_adapter(directory, "adapter"))
        e["curve_pertoken.loss"], e["curve_pertoken.grad_norm"], _ = train(torch, again, samples, per_token_loss)
    for name in EXTRA_ADAPTERS.get(case, {}):
        extra = prepare(load_adapter(directory, f"adapter_{name}"))
        with torch.no_grad():
            e[f"extra.{name}.logits.0"] = logits_of(extra, samples[0])
    return e


@contextlib.contextmanager
def float64_softmax(torch):
    # transformers' eager attention asks for a float32 softmax by name.
    original = torch.nn.functional.softmax
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **_: original(x, dim=dim)
    try:
        yield
    finally:
        torch.nn.functional.softmax = original


def to_float64(model):
    import torch

    def rmsnorm(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(rmsnorm, module)
    return model.double()


def noise(case, directory, expected):
    """Distance of the float32 values from the same computation in float64 (RoPE angles stay float32)."""
    import torch
    with float64_softmax(torch):
        exact = compute(case, directory, to_float64)

    def worst(prefix, relative):
        values = []
        for k in expected:
            if k.startswith(prefix):
                a, b = expected[k].double(), exact[k].double()
                values.append(((a - b).abs().max() / (b.abs().max() if relative else 1.0)).item())
        return float(f"{max(values):.2g}")
    return {
        "logits relative": worst("logits_", True), "logprobs absolute": worst("logprobs_", False),
        "entropy absolute": worst("entropy_", False), "grad relative": worst("grad.", True),
        "rl.logprobs absolute": worst("rl.logprobs.", False), "rl.entropy absolute": worst("rl.entropy.", False),
        "rl.grad relative": worst("rl.grad.", True), "curve.loss absolute": worst("curve.loss", False),
        "curve.grad_norm absolute": worst("curve.grad_norm", False), "final relative": worst("final.", True),
    }


def confirm(case, directory, expected):
    """The saved directory alone gives the saved logits; adapter keys are the keys of the gradients."""
    import torch
    from safetensors.torch import load_file
    model = load_adapter(directory, "adapter")
    with torch.no_grad():
        for i in range(len(LENGTHS)):
            difference = (logits_of(model, expected[f"tokens.{i}"]) - expected[f"logits_lora.{i}"]).abs().max().item()
            assert difference < 1e-6, (case, i, difference)
            moved = (expected[f"logits_lora.{i}"] - expected[f"logits_base.{i}"]).abs().max().item()
            assert moved > 0.1, (case, "the adapter hardly changes the logits", moved)
    saved = load_file(directory / "adapter" / "adapter_model.safetensors")
    for prefix in ("grad.", "rl.grad.", "final."):
        assert {k[len(prefix):] for k in expected if k.startswith(prefix)} == set(saved), (case, prefix)
        for k, v in saved.items():
            assert expected[prefix + k].shape == v.shape and expected[prefix + k].abs().max() > 0, (case, prefix, k)
    for path in directory.glob("adapter*/adapter_model.safetensors"):
        assert all(t.abs().min() > 0 for t in load_file(path).values()), (path, "has a zero")
    for path in directory.glob("*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(path).values()), (path, "is not finite")


def write_case(case, out):
    from safetensors.torch import save_file
    import torch
    directory = out / case
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_model(case, directory)
    write_adapter(case, directory, "adapter", r=4, lora_alpha=8, target_modules=PROJECTIONS)
    for name, options in (EXTRA_ADAPTERS.get(case, {}) | REFUSED_ADAPTERS.get(case, {})).items():
        write_adapter(case, directory, f"adapter_{name}", **options)
    expected = {k: (v if v.dtype == torch.int32 else v.float()).contiguous()
                for k, v in compute(case, directory).items()}
    save_file(expected, directory / "expected.safetensors", metadata={"format": "pt"})
    confirm(case, directory, expected)
    return noise(case, directory, expected)


def write_manifest(out, noises):
    import peft
    import pyarrow
    import safetensors
    import tokenizers
    import torch
    import transformers
    modules = (torch, transformers, peft, safetensors, tokenizers, pyarrow)
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.name != "MANIFEST.json")
    write_json(out / "MANIFEST.json", {
        "generator": "tools/golden/make_goldens.py", "tokenizer_generator": "tools/golden/tokenizer_cases.py",
        "parquet_generator": "tools/golden/parquet_cases.py",
        "chat_generator": "tools/golden/chat_cases.py",
        "curves_generator": "tools/golden/make_curves.py",
        "python_regex_generator": "tools/golden/python_regex_cases.py",
        "torch_files_generator": "tools/golden/torch_files.py",
        "rl_generator": "tools/golden/rl_cases.py, tools/golden/ppo_cases.py, tools/golden/distillation_cases.py",
        "python": sys.version.split()[0], "seed": SEED, "versions": {m.__name__: m.__version__ for m in modules},
        "noise": noises, "files": {p.relative_to(out).as_posix(): digest(p) for p in files},
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", choices=sorted(CONFIGS), action="append", help="write only this case")
    parser.add_argument("--manifest", action="store_true", help="only rewrite MANIFEST.json from the files that are there")
    parser.add_argument("--check", action="store_true", help="verify the sha256 of every file and write nothing")
    args = parser.parse_args()
    if args.check:
        return check(args.out)
    import torch
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    manifest = args.out / "MANIFEST.json"
    partial = args.only or args.manifest
    noises = json.loads(manifest.read_text())["noise"] if partial and manifest.is_file() else {}
    for case in [] if args.manifest else args.only or CONFIGS:
        noises[case] = write_case(case, args.out)
        print(case, noises[case], flush=True)
    write_manifest(args.out, noises)
    return check(args.out)


if __name__ == "__main__":
    sys.exit(main())
