#!/usr/bin/env python3
"""Writes differences to a teacher over top-k tokens, and distillation losses with their gradients, in double precision.

  python3 tools/golden/distillation_cases.py --out tests/golden/rl/distillation.json
  (then tools/golden/make_goldens.py --manifest records the file in MANIFEST.json)

Needs nothing beside Python. Masks are those of the rollout of rl_cases.py. Both policies have random logits over 12 tokens; every
log-prob that is written is exact in float32. Sets of tokens are worked out as sets; gradients are those of dual numbers.
"""
import argparse
import json
import math
import pathlib
import random

from rl_cases import Dual, KL, clamp, exp, f32, largest, log, make_rollout, reduced

SEED, VOCAB, K = 23, 12, 4
SETS = ["only-student", "only-teacher", "intersection", "union", "xor"]
TOP_K = ["forward_kl_topk", "forward_kl_topk_tail"]
WEIGHTS = ["student_p", "teacher_p", "none"]


def log_softmax(logits):
    top = max(logits)
    total = top + math.log(sum(math.exp(x - top) for x in logits))
    return [f32(x - total) for x in logits]


def with_policies(rollout):
    rng = random.Random(SEED)
    for s in rollout:
        n = len(s["weights"])
        logits = lambda near, spread: [[x + rng.uniform(-spread, spread) for x in row] for row in near]
        flat = [[0.0] * VOCAB] * n
        student = logits(flat, 2.5)
        s["student"] = [log_softmax(row) for row in student]
        s["teacher"] = [log_softmax(row) for row in logits(student, 2.0)]
        s["now"] = [log_softmax(row) for row in logits(student, 0.5)]  # the student after some steps
        s["target"] = [rng.randrange(VOCAB) for _ in range(n)]
        top = lambda row: sorted(range(VOCAB), key=lambda v: (-row[v], v))[:K]
        s["student_top"], s["teacher_top"] = [[top(row) for row in s[name]] for name in ("student", "teacher")]
    return rollout


def difference(s, t, tokens, weight):
    a, b = set(s["student_top"][t]), set(s["teacher_top"][t])
    chosen = {"only-student": a, "only-teacher": b, "intersection": a & b, "union": a | b, "xor": a ^ b}[tokens]
    if not chosen:
        return 0.0
    student, teacher = s["student"][t], s["teacher"][t]
    raw = {v: {"student_p": math.exp(student[v]), "teacher_p": math.exp(teacher[v]), "none": 1.0}[weight] for v in chosen}
    total = 1.0 if tokens == "xor" else sum(raw.values())
    return sum(raw[v] / total * (student[v] - teacher[v]) for v in chosen)


def differences(rollout):
    return [{"tokens": tokens, "weight": weight,
             "difference": [[difference(s, t, tokens, weight) for t in range(len(s["weights"]))] for s in rollout]}
            for tokens in SETS for weight in WEIGHTS]


def row_loss(s, t, now, case):
    """now: of row t, duals of all tokens' log-probs."""
    if case["mode"] in TOP_K:
        value = Dual(0)
        for v in s["teacher_top"][t]:
            log_p, lp = s["teacher"][t][v], now[v]
            if case["min_logprob"] < 0:
                log_p, lp = max(log_p, case["min_logprob"]), largest(lp, case["min_logprob"])
            value = value + math.exp(log_p) * (log_p - lp)
        if case["mode"] == "forward_kl_topk":
            value = largest(value, 0)
        else:
            q = 1 - sum(math.exp(s["teacher"][t][v]) for v in s["teacher_top"][t])
            r = largest(1 - sum((exp(now[v]) for v in s["teacher_top"][t]), Dual(0)), case["tail_eps"])
            value = value + q * (math.log(q) - log(r))
    else:
        v = s["target"][t]
        value = KL[case["mode"]](now[v] - s["teacher"][t][v])
    return clamp(value, -case["max_value"], case["max_value"]) if case["max_value"] else value


def evaluate(rollout, case):
    def at(sample, row, token):
        values = []
        for i, s in enumerate(rollout):
            lp = lambda t: [Dual(x, 1.0 if (i, t, v) == (sample, row, token) else 0.0) for v, x in enumerate(s["now"][t])]
            values.append([case["coef"] * row_loss(s, t, lp(t), case) for t, w in enumerate(s["weights"]) if w])
        return reduced(values, rollout, case["reduction"])

    d_candidates, d_target = [], []
    for i, s in enumerate(rollout):
        for t, w in enumerate(s["weights"]):
            slopes = [at(i, t, v).slope if w else 0.0 for v in s["teacher_top"][t]]
            d_candidates += slopes if case["mode"] in TOP_K else []
            d_target.append(at(i, t, s["target"][t]).slope if w and case["mode"] not in TOP_K else 0.0)
    return {**case, "loss": at(-1, -1, -1).value, "d_logprob": d_target, "d_candidates": d_candidates}


def cases():
    base = {"coef": 0.5, "max_value": 0.0, "min_logprob": 0.0, "tail_eps": 0.0078125, "reduction": "seq-mean-token-mean"}
    for mode in (*TOP_K, "k2", "k3", "low_var_kl", "abs", "k3+"):
        yield {**base, "mode": mode}
        yield {**base, "mode": mode, "max_value": 0.25, "reduction": "token-mean"}
    for mode in TOP_K:
        yield {**base, "mode": mode, "min_logprob": -1.75}
    yield {**base, "mode": "forward_kl_topk_tail", "tail_eps": 0.125}
    yield {**base, "mode": "forward_kl_topk", "min_logprob": -1.75, "max_value": 0.125, "coef": 2.0, "reduction": "token-sum"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    rollout = with_policies(make_rollout())
    kept = [{key: s[key] for key in ("weights", "advantages", "student", "teacher", "now", "target", "student_top", "teacher_top")}
            for s in rollout]
    written = {"rollout": kept, "differences": differences(rollout), "losses": [evaluate(rollout, case) for case in cases()]}
    lines = [f"{json.dumps(key)}: [\n" + ",\n".join(map(json.dumps, value)) + "\n]" for key, value in written.items()]
    out.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
