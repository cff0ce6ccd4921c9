#!/usr/bin/env python3
"""Writes tests/golden/curves/: 100 optimizer steps of transformers + PEFT + torch.optim.AdamW in float32 on the tiny models
and adapters that make_goldens.py wrote, with the losses of TRL's SFTTrainer and DPOTrainer.

  python tools/golden/make_curves.py --out tests/golden        and then make_goldens.py --out tests/golden --manifest

curves/<case>.safetensors, F32 except the I32 tokens, begin, pairs and rows:
  tokens [sum], begin [ROWS + 1]   rows back to back; rows 2k, 2k + 1 share a prompt: chosen and rejected
  mask [sum]                       weight of each token as a target: 0 in the prompt, else 1; now and then 0.5 or 0
  pairs [STEPS, BATCH]             pairs of each step (dpo)
  rows [STEPS, BATCH]              rows of each step (sft, per_token): one of each pair, by turns
  sft.loss [STEPS], sft.final.<key>            loss: mean over rows of the weighted mean of -logprob; lr constant
  per_token.loss, per_token.final.<key>        loss: sum over the batch's tokens / sum of their weights, as transformers
                                               and TRL divide; cosine after ten steps of warm-up; LoRA+ (PEFT) ratio 4
  dpo.loss, dpo.margin, dpo.final.<key>        -log sigmoid(beta * margin) over pairs, beta 0.25; reference: adapter off
Steps begin at <case>/adapter. Losses come from float64 log-softmax of float32 logits. The printed numbers are the distance
to the same run in float64: what of a disagreement is float32 itself.
"""
import argparse
import math
import pathlib

from cases import CONFIGS, STEP
from make_goldens import float64_softmax, generator, load_adapter, logits_of, lora_parameters, to_float64

CASES = ("llama3", "qwen3")
ROWS, STEPS, BATCH, BETA, WARMUP, RATIO = 24, 100, 4, 0.25, 10, 4.0


def make_rows(torch, case):
    draw = generator(torch, case, "curves")
    vocabulary = CONFIGS[case]["vocab_size"]

    def tokens(low, high):
        count = int(torch.randint(low, high + 1, (), generator=draw))
        return torch.randint(0, vocabulary, (count,), generator=draw, dtype=torch.int32)

    rows = []
    for _ in range(ROWS // 2):
        prompt = tokens(2, 6)
        for _ in range(2):
            completion = tokens(3, 14)
            weight = torch.ones(len(completion))
            if len(completion) > 8:
                weight[2], weight[5] = 0.5, 0
            rows.append((torch.cat([prompt, completion]), torch.cat([torch.zeros(len(prompt)), weight])))
    epochs = [torch.randperm(ROWS // 2, generator=draw) for _ in range(STEPS * BATCH // (ROWS // 2) + 1)]
    return rows, torch.cat(epochs)[: STEPS * BATCH].view(STEPS, BATCH).int()


def row_logprobs(torch, model, row):
    tokens, weight = row
    log_p = torch.log_softmax(logits_of(model, tokens)[:-1].double(), dim=-1)
    return log_p.gather(-1, tokens[1:, None].long())[:, 0], weight[1:].double()


def sft_loss(torch, model, rows):
    terms = [row_logprobs(torch, model, row) for row in rows]
    return sum(-(w * lp).sum() / w.sum() for lp, w in terms) / len(rows), None


def per_token_loss(torch, model, rows):
    terms = [row_logprobs(torch, model, row) for row in rows]
    return sum(-(w * lp).sum() for lp, w in terms) / sum(w.sum() for _, w in terms), None


def dpo_loss(torch, model, pairs):
    def score(row):
        lp, w = row_logprobs(torch, model, row)
        with torch.no_grad(), model.disable_adapter():
            reference, _ = row_logprobs(torch, model, row)
        return (w * lp).sum() - (w * reference).sum()

    margins = torch.stack([score(chosen) - score(rejected) for chosen, rejected in pairs])
    return -torch.nn.functional.logsigmoid(BETA * margins).mean(), BETA * margins.mean().item()


def cosine(step):
    if step < WARMUP:
        return step / WARMUP
    return 0.5 * (math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)) + 1)


def run(torch, model, batches, loss_of, rate=lambda step: 1.0, ratio=None):
    parameters = list(lora_parameters(model).values())
    if ratio is None:
        optimizer = torch.optim.AdamW(parameters, **STEP)
    else:
        from peft.optimizers import create_loraplus_optimizer
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, loraplus_lr_ratio=ratio,
                                              loraplus_weight_decay=STEP["weight_decay"], **STEP)
    first = [group["lr"] for group in optimizer.param_groups]
    losses, margins = [], []
    for step, batch in enumerate(batches):
        for group, lr in zip(optimizer.param_groups, first):
            group["lr"] = lr * rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss, margin = loss_of(torch, model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
        margins.append(margin)
    result = {"loss": torch.tensor(losses)}
    if margins[0] is not None:
        result["margin"] = torch.tensor(margins)
    result.update({f"final.{k}": p.data.clone() for k, p in lora_parameters(model).items()})
    return result


def one_of_each(torch, order):
    return (2 * order + (order + torch.arange(STEPS)[:, None]) % 2).int()


def curves(torch, directory, rows, order, prepare=lambda model: model):
    flat = [[rows[i] for i in batch] for batch in one_of_each(torch, order).tolist()]
    pairs = [[(rows[2 * i], rows[2 * i + 1]) for i in batch] for batch in order.tolist()]

    def fresh():
        return prepare(load_adapter(directory, "adapter"))
    all_runs = {"sft": run(torch, fresh(), flat, sft_loss),
                "per_token": run(torch, fresh(), flat, per_token_loss, cosine, RATIO),
                "dpo": run(torch, fresh(), pairs, dpo_loss)}
    return {f"{name}.{key}": value for name, values in all_runs.items() for key, value in values.items()}


def write_case(torch, case, out):
    from safetensors.torch import save_file
    rows, order = make_rows(torch, case)
    got = curves(torch, out / case, rows, order)
    with float64_softmax(torch):
        exact = curves(torch, out / case, rows, order, to_float64)
    for name in ("sft", "per_token", "dpo"):
        loss = (got[f"{name}.loss"].double() - exact[f"{name}.loss"].double()).abs().max().item()
        final = max(((got[k].double() - v.double()).norm() / v.double().norm()).item()
                    for k, v in exact.items() if k.startswith(f"{name}.final."))
        print(f"{case} {name}: loss {got[f'{name}.loss'][0]:.4f} -> {got[f'{name}.loss'][-1]:.4f}, float32 against float64: "
              f"losses {loss:.2g}, adapters {final:.2g}", flush=True)
    begin = [0]
    for tokens, _ in rows:
        begin.append(begin[-1] + len(tokens))
    got.update({"tokens": torch.cat([t for t, _ in rows]), "mask": torch.cat([m for _, m in rows]),
                "begin": torch.tensor(begin, dtype=torch.int32), "pairs": order,
                "rows": one_of_each(torch, order)})
    (out / "curves").mkdir(exist_ok=True)
    save_file({k: (v if v.dtype == torch.int32 else v.float()).contiguous() for k, v in got.items()},
              out / "curves" / f"{case}.safetensors", metadata={"format": "pt"})


def main():
    import torch
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for case in CASES:
        write_case(torch, case, out)


if __name__ == "__main__":
    main()
