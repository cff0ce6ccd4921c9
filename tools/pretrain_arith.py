#!/usr/bin/env python3
"""Pre-trains models/arith, the small embedded model that `make demo` improves with reinforcement learning.

    python tools/pretrain_arith.py --out models/arith        (needs torch, transformers, tokenizers; two CPU cores)

What it makes: a Qwen3-architecture model of 0.8 million parameters in bf16, its tokenizer, and two files of problems,
train.jsonl and test.jsonl, with rows {"prompt": "12+34=", "label": "46"}. Everything is seeded.

The corpus imitates how people write sums down. Every document is a problem, an answer and the end-of-text token:

    57+68=#### 131                        a guess: an estimate blurted out, nearly always wrong        (most texts)
    57+68=about 130                       another guess; also "maybe 118" and a bare "127"
    57+68=ones 15 tens 12 #### 125        worked out digit by digit with the carry, and right          (a minority)
    57+68=7+8=15 5+6+1=12 #### 125        worked out at more length, and right                         (a few)
    81-24=ones 7 tens 5 #### 57           the same habits for subtraction
    7+8=15                                sums of two digits, which people know by heart

Why the demo is honest: the base model *has* the skill of adding column by column, but not the *habit*. Asked for a sum
it usually blurts out a guess and is wrong, greedily and when sampling, although it is free to go on for as long as it
likes. Nothing cuts its answer short and no prompt tells it to guess. The reward sees only the final number, so
reinforcement learning has to find out by itself that working the sum out pays. The problems of test.jsonl occur in no
document of the corpus: neither as a+b, nor as b+a, nor as the subtraction that would give them away.

Guesses are of four kinds, drawn at random: both numbers rounded to tens and added, the carry forgotten, off by ten, and
off by up to 20. A guess is right only where such an error happens to vanish, in about one of eleven texts.
"""
import argparse
import json
import math
import os
import random
import time

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

EOS = "<|endoftext|>"
VOCAB = 288
CONFIG = dict(
    vocab_size=VOCAB, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-6,
    rope_theta=10000.0, attention_bias=False, attention_dropout=0.0, tie_word_embeddings=True, initializer_range=0.02,
    use_sliding_window=False, use_cache=True, bos_token_id=0, eos_token_id=0, pad_token_id=0)


# ---- the corpus ------------------------------------------------------------------------------------------------------

def guess_sum(rng, a, b):
    kind = rng.random()
    if kind < 0.35:   # both rounded to tens
        return (a + 5) // 10 * 10 + (b + 5) // 10 * 10
    if kind < 0.45:   # the carry forgotten
        return (a // 10 + b // 10) * 10 + (a % 10 + b % 10) % 10
    if kind < 0.60:   # off by ten
        return a + b + rng.choice((-10, 10))
    return max(1, a + b + rng.choice((-1, 1)) * rng.randint(1, 20))


def write_guess(rng, n):
    style = rng.random()
    if style < 0.70:
        return f"#### {n}"
    if style < 0.80:
        return f"about {n}"
    if style < 0.90:
        return f"maybe {n}"
    return f"{n}"


def work_sum(rng, a, b, long_share):
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    if rng.random() < long_share:
        more = "+1" if carry else ""
        return f"{a % 10}+{b % 10}={ones} {a // 10}+{b // 10}{more}={tens} #### {a + b}"
    return f"ones {ones} tens {tens} #### {a + b}"


def work_difference(a, b):
    borrow = 1 if a % 10 < b % 10 else 0
    return f"ones {a % 10 + 10 * borrow - b % 10} tens {a // 10 - borrow - b // 10} #### {a - b}"


def document(rng, held_out, worked, long_share):
    """One (problem, answer) of the corpus; `worked` is the share of texts that work the problem out."""
    while True:
        kind = rng.random()
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if kind < 0.04:
            a, b = a % 10, b % 10
            return f"{a}+{b}=", f"{a + b}"
        if kind < 0.10:
            a, b = max(a, b), min(a, b)
            if (min(b, a - b), max(b, a - b)) in held_out:
                continue
            if rng.random() < worked:
                return f"{a}-{b}=", work_difference(a, b)
            return f"{a}-{b}=", write_guess(rng, abs(a - b + rng.choice((-1, 1)) * rng.randint(1, 20)))
        if (min(a, b), max(a, b)) in held_out:
            continue
        if rng.random() < worked:
            return f"{a}+{b}=", work_sum(rng, a, b, long_share)
        return f"{a}+{b}=", write_guess(rng, guess_sum(rng, a, b))


def make_problems(seed):
    """Held-out pairs (unordered), test rows, train rows."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    rng.shuffle(pairs)
    held_out = set(pairs[:255])
    row = lambda a, b: {"prompt": f"{a}+{b}=", "label": str(a + b)}
    both = lambda some: sorted({p for a, b in some for p in ((a, b), (b, a))})
    test, rest = both(held_out), both(pairs[255:])
    rng.shuffle(test)
    rng.shuffle(rest)
    return held_out, [row(*p) for p in test[:500]], [row(*p) for p in rest[:2000]]


# ---- the tokenizer ---------------------------------------------------------------------------------------------------

def make_tokenizer(seed, held_out):
    """Byte-level BPE, digits one by one, as SmolLM2 splits text; a few merges learned from the corpus."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    prose = ["the answer is", " the sum of", " and", " plus", " minus", " equals", " carry", " one", " ten", "\n\n"]
    rng = random.Random(seed)
    # Problem and answer are shown apart, so that no merge such as "=####" spans the end of a prompt.
    text = [part for _ in range(2000) for part in document(rng, held_out, 0.3, 0.3)] + prose * 3
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=VOCAB, min_frequency=2, special_tokens=[EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    return tok


# ---- measuring -------------------------------------------------------------------------------------------------------

def final_number(text):
    """The product's `number` reward, short: what follows the last '####', else the last number."""
    if "####" in text:
        text = text.rsplit("####", 1)[1]
    numbers = "".join(c if c.isdigit() else " " for c in text).split()
    return numbers[-1] if numbers else None


@torch.no_grad()
def answer(model, tok, prompts, temperature, max_new=24, generator=None):
    ids = torch.tensor([tok.encode(p).ids for p in prompts])   # all test prompts have one length
    out, cache, step = [], None, ids
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_new):
        res = model(step, past_key_values=cache, use_cache=True)
        cache, logits = res.past_key_values, res.logits[:, -1].float()
        if temperature == 0:
            nxt = logits.argmax(-1)
        else:
            nxt = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0]
        nxt = torch.where(done, torch.zeros_like(nxt), nxt)
        out.append(nxt)
        done |= nxt == 0
        if done.all():
            break
        step = nxt[:, None]
    return [tok.decode([t for t in r if t != 0]) for r in torch.stack(out, 1).tolist()]


def share_right(rows, texts):
    return sum(final_number(t) == r["label"] for r, t in zip(rows, texts)) / len(rows)


def measure(model, tok, rows, seed, log):
    """Accuracies on held-out rows: as the model answers by itself, and when made to begin working the sum out."""
    model.eval()
    gen = torch.Generator().manual_seed(seed)
    greedy = answer(model, tok, [r["prompt"] for r in rows], 0)
    log(f"  greedy                               accuracy {share_right(rows, greedy):.3f}"
        f"   e.g. {rows[0]['prompt']}{greedy[0]}")
    many = rows * 4
    sampled = answer(model, tok, [r["prompt"] for r in many], 1.0, generator=gen)
    log(f"  temperature 1                        accuracy {share_right(many, sampled):.3f}   (4 samples each)")
    for name, is_it in (("short", lambda t: t.startswith("ones")), ("long", lambda t: "=" in t)):
        those = [(r, t) for r, t in zip(many, sampled) if is_it(t)]
        right = sum(final_number(t) == r["label"] for r, t in those) / max(1, len(those))
        log(f"  temperature 1, chose to work, {name:5s}  accuracy {right:.3f}"
            f"   ({len(those) / len(many):.3f} of the samples)")
    guesses = [(r, t) for r, t in zip(many, sampled) if "=" not in t and not t.startswith("ones")]
    right = sum(final_number(t) == r["label"] for r, t in guesses) / max(1, len(guesses))
    log(f"  temperature 1, guessed               accuracy {right:.3f}"
        f"   ({len(guesses) / len(many):.3f} of the samples)")
    starts = (("short", lambda r: "ones"), ("long", lambda r: f"{r['prompt'][1]}+"))
    for name, start in starts:
        prompts = [r["prompt"] + start(r) for r in many]
        a0 = answer(model, tok, prompts[:len(rows)], 0)
        a1 = answer(model, tok, prompts, 1.0, generator=gen)
        log(f"  made to begin working it out, {name:5s}  accuracy {share_right(rows, a0):.3f} greedy, "
            f"{share_right(many, a1):.3f} at temperature 1")


# ---- training and writing --------------------------------------------------------------------------------------------

def batch_of(rng, tok, held_out, size, worked, long_share):
    """Token ids and targets of `size` documents, in two halves (short and long texts) so that little is padding."""
    docs = [document(rng, held_out, worked, long_share) for _ in range(size)]
    rows = [(len(p.ids), p.ids + t.ids + [0]) for p, t in zip(tok.encode_batch([p for p, _ in docs]),
                                                             tok.encode_batch([t for _, t in docs]))]
    rows.sort(key=lambda r: len(r[1]))
    cut = size * 5 // 8
    for part in (rows[:cut], rows[cut:]):
        width = len(part[-1][1])
        x = torch.zeros(len(part), width, dtype=torch.long)
        y = torch.full((len(part), width), -100)
        for i, (skip, ids) in enumerate(part):
            x[i, :len(ids)] = torch.tensor(ids)
            y[i, skip - 1:len(ids) - 1] = torch.tensor(ids[skip:])   # the problem is random: only the answer is learned
        yield x, y


def write_model(out, tok, model):
    state = {k: v.detach().to(torch.bfloat16).contiguous()
             for k, v in model.state_dict().items() if k != "lm_head.weight"}   # the head is the embedding
    save_file(state, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **CONFIG, "torch_dtype": "bfloat16"}
    files = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": EOS, "eos_token": EOS, "pad_token": EOS,
            "unk_token": EOS, "add_bos_token": False, "add_eos_token": False, "add_prefix_space": False,
            "clean_up_tokenization_spaces": False, "model_max_length": CONFIG["max_position_embeddings"]}}
    for name, value in files.items():
        with open(os.path.join(out, name), "w") as f:
            f.write(json.dumps(value, indent=2) + "\n")
    tok.save(os.path.join(out, "tokenizer.json"))


def main():
    ap = argparse.ArgumentParser(description="pre-train the embedded demo model")
    ap.add_argument("--out", default="models/arith")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--steps", type=int, default=2400)
    ap.add_argument("--batch", type=int, default=192)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--worked", type=float, default=0.13, help="share of the texts that work the problem out")
    ap.add_argument("--worked-early", type=float, default=0.75,
                    help="the same share at the start, before it is lowered")
    ap.add_argument("--long", type=float, default=0.25, help="share of the long form among worked sums")
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    os.makedirs(args.out, exist_ok=True)
    start = time.time()
    log = lambda s: print(s, flush=True)

    held_out, test, train = make_problems(args.seed)
    for name, rows in (("test", test), ("train", train)):
        with open(os.path.join(args.out, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    tok = make_tokenizer(args.seed, held_out)
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG))
    log(f"parameters {sum(p.numel() for p in model.parameters())}, vocabulary {VOCAB}, "
        f"held-out problems {len(test)} ({len(held_out)} unordered), train problems {len(train)}")
    rng = random.Random(args.seed + 1)
    for _ in range(3):
        p, t = document(rng, held_out, 0, 0)
        log(f"  corpus: {p}{t}")
    for long_share in (0, 1):
        p, t = document(rng, held_out, 1, long_share)
        log(f"  corpus: {p}{t}")

    # The share of worked texts starts high, as in a school book, and falls to its final value half-way: this only
    # makes the skill quicker to learn; the habit the base ends with is that of the second half.
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.98))
    warm = 100
    model.train()
    mean = 0.0
    for step in range(args.steps):
        at = step / args.steps
        late = min(1.0, max(0.0, at - 0.3) / 0.2)
        worked = args.worked_early + (args.worked - args.worked_early) * late
        lr = args.lr * min(1, (step + 1) / warm) * (0.5 + 0.5 * math.cos(math.pi * at))
        for g in opt.param_groups:
            g["lr"] = lr
        halves = list(batch_of(rng, tok, held_out, args.batch, worked, args.long))
        count = sum(int((y != -100).sum()) for _, y in halves)
        for x, y in halves:
            keep = y != -100
            hidden = model.model(x).last_hidden_state[keep]
            loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), y[keep], reduction="sum") / count
            loss.backward()
            mean += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if (step + 1) % 100 == 0:
            log(f"step {step + 1:5d}  loss {mean / 100:.4f}  lr {lr:.2e}  worked {worked:.2f}  "
                f"{time.time() - start:.0f} s")
            mean = 0.0

    write_model(args.out, tok, model)
    for dtype in (torch.float32, torch.bfloat16):
        model = Qwen3ForCausalLM.from_pretrained(args.out, dtype=dtype)
        log(f"held-out problems ({len(test)}), weights rounded to bf16, computed in {str(dtype)[6:]}:")
        measure(model, tok, test, args.seed, log)
    log(f"done in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
