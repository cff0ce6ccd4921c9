#!/usr/bin/env python3
"""Writes advantages and policy losses of a small random rollout, from their formulas, in double precision.

  python3 tools/golden/rl_cases.py --out tests/golden/rl/methods.json
  (then tools/golden/make_goldens.py --manifest records the file in MANIFEST.json)

Needs nothing beside Python. Derivatives are those of dual numbers: a loss is written once as a value, and its gradient by a
log-prob or an entropy follows. The rollout has groups of 4, 3, 3, 1 and 2, one group of equal rewards, one of which no token
learns, samples of several turns, truncated ones, one that is wholly masked; every number is exact in float32.
"""
import argparse
import json
import math
import pathlib
import random
import struct

SEED = 21
GROUPS = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4]


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


class Dual:
    """A value and its derivative."""

    def __init__(self, value, slope=0.0):
        self.value, self.slope = float(value), float(slope)

    @staticmethod
    def of(x):
        return x if isinstance(x, Dual) else Dual(x)

    def __add__(self, other):
        other = Dual.of(other)
        return Dual(self.value + other.value, self.slope + other.slope)

    __radd__ = __add__

    def __neg__(self):
        return Dual(-self.value, -self.slope)

    def __sub__(self, other):
        return self + -Dual.of(other)

    def __rsub__(self, other):
        return Dual.of(other) - self

    def __mul__(self, other):
        other = Dual.of(other)
        return Dual(self.value * other.value, self.value * other.slope + self.slope * other.value)

    __rmul__ = __mul__

    def __truediv__(self, other):
        other = Dual.of(other)
        return Dual(self.value / other.value, (self.slope * other.value - self.value * other.slope) / other.value ** 2)

    def __rtruediv__(self, other):
        return Dual.of(other) / self


def exp(x):
    value = math.exp(x.value)
    return Dual(value, value * x.slope)


def log(x):
    return Dual(math.log(x.value), x.slope / x.value)


def absolute(x):
    return x if x.value > 0 else -x if x.value < 0 else Dual(0)


def largest(a, b):
    a, b = Dual.of(a), Dual.of(b)
    return a if a.value >= b.value else b


def smallest(a, b):
    return -largest(-Dual.of(a), -Dual.of(b))


def clamp(x, low, high):
    return smallest(largest(x, low), high)


def stop(x):
    return Dual(x.value)


def make_rollout():
    rng = random.Random(SEED)
    rollout = []
    rewards = [1, 0, 0.25, 1, 0.5, 0.5, 0.5, -0.5, 2, 0.75, 0.375, 1, 0]
    for i, group in enumerate(GROUPS):
        length = rng.randint(5, 9)
        mask = [0, 0] + [1] * (length - 2)
        if i % 3 == 1:
            mask[4] = 0  # another turn's prompt
        if i in (6, 11, 12):
            mask = [0] * length
        draw = lambda low, high: [f32(rng.uniform(low, high)) for _ in range(length)]
        old = draw(-3, -0.05)
        rollout.append({
            "group": group, "reward": rewards[i], "truncated": i % 4 == 2, "baseline": f32(rng.uniform(0, 1)), "weights": mask, "policy_logprobs": old,
            "sampled_logprobs": [f32(x + rng.uniform(-0.05, 0.05)) for x in old],
            "ref_logprobs": [f32(x + rng.uniform(-1, 1)) for x in old],
            "logprob": [f32(x + rng.choice([0.02, 0.2, 1.0]) * rng.uniform(-1, 1)) for x in old],
            "entropy": draw(0.1, 3), "advantages": draw(-2, 2), "policy_weights": draw(0.2, 1.5)})
    return rollout


def without_truncated(rollout):
    return [{**s, "weights": [0] * len(s["weights"]), "drawn": s["weights"]} if s["truncated"] else s for s in rollout]


# --- advantages: one list of row values per sample ---

def rows(sample):
    return [t for t, w in enumerate(sample["weights"]) if w]


def mean(values):
    return sum(values) / len(values)


def std(values, ddof=1):
    m = mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - ddof))


def whitened(per_sample, rollout):
    values = [a[t] for a, s in zip(per_sample, rollout) for t in rows(s)]
    m, var = mean(values), std(values) ** 2
    return [[(a[t] - m) / math.sqrt(var + 1e-8) if s["weights"][t] else 0.0 for t in range(len(a))]
            for a, s in zip(per_sample, rollout)]


def by_group(rollout, advantage):
    """advantage(rewards, samples) -> one number per sample of a group."""
    result = []
    for group in sorted(set(GROUPS)):
        samples = [s for s in rollout if s["group"] == group]
        values = advantage([s["reward"] for s in samples], samples)
        result += [[v] * len(s["weights"]) for v, s in zip(values, samples)]
    return result


def grpo(eps=1e-6, ddof=1, divide=True, batch=None):
    def advantage(r, _):
        if len(set(r)) == 1:
            return [0.0] * len(r)
        scale = (batch if batch is not None else std(r, ddof)) + eps if divide else 1
        return [(x - mean(r)) / scale for x in r]
    return advantage


def rloo(r, _):
    n = len(r)
    return [x - (sum(r) - x) / (n - 1) for x in r] if n > 1 else r


def max_rl(r, _):
    return [(x - mean(r)) / mean(r) for x in r] if mean(r) and len(set(r)) > 1 else [0.0] * len(r)


def opo(r, samples):
    if len(r) == 1:
        return r
    lengths = [sum(s.get("drawn", s["weights"])) for s in samples]  # those of masked samples, too
    if not sum(lengths):
        return r
    baseline = sum(n * x for n, x in zip(lengths, r)) / sum(lengths)
    return [x - baseline for x in r]


def pass_at_k(r, _):
    order = sorted(r)
    if len(r) < 2 or order[-1] == order[-2]:
        return [0.0] * len(r)
    return [(order[-1] - order[-2]) / (std(r) + 1e-6) if x == order[-1] else 0.0 for x in r]


def discounted(rollout, gamma, kl_coef):
    result = []
    for s in rollout:
        token = [0.0] * len(s["weights"])
        for t in rows(s):
            token[t] = -kl_coef * (s["policy_logprobs"][t] - s["ref_logprobs"][t])
        if rows(s):
            token[rows(s)[-1]] += s["reward"]
        result.append([sum(gamma ** k * token[u] for k, u in enumerate(t2 for t2 in rows(s) if t2 >= t)) if w else 0.0
                       for t, w in enumerate(s["weights"])])
    return whitened(result, rollout)


def baseline_less_kl(rollout, kl_coef):
    centered = by_group(rollout, lambda r, _: [x - mean(r) for x in r])
    return whitened([[a - kl_coef * (s["policy_logprobs"][t] - s["ref_logprobs"][t]) for t, a in enumerate(row)]
                     for row, s in zip(centered, rollout)], rollout)


def advantages(rollout):
    rewards = [s["reward"] for s in rollout]
    alpha = len(rewards) / sum(1 for r in rewards if r)
    return {
        "grpo": by_group(rollout, grpo()),
        "grpo_population": by_group(rollout, grpo(ddof=0)),
        "grpo_batch": by_group(rollout, grpo(eps=1e-4, batch=std(rewards))),
        "grpo_whitened": whitened(by_group(rollout, grpo()), rollout),
        "dr_grpo": by_group(rollout, grpo(divide=False)),
        "rloo": by_group(rollout, rloo),
        "max_rl": by_group(rollout, max_rl),
        "opo": by_group(rollout, opo),
        "remax": by_group(rollout, lambda r, s: [x - y["baseline"] for x, y in zip(r, s)]),
        "gpg": by_group(rollout, lambda r, _: [alpha * (x - (mean(r) if len(r) > 1 else 0)) for x in r]),
        "grpo_passk": by_group(rollout, pass_at_k),
        "reinforce_plus_plus": discounted(rollout, 0.9, 0.05),
        "reinforce_plus_plus_baseline": baseline_less_kl(rollout, 0.05),
        "opo_without_truncated": by_group(without_truncated(rollout), opo),
        "reinforce_plus_plus_without_truncated": discounted(without_truncated(rollout), 0.9, 0.05),
    }


# --- losses: value of a sample's rows, as duals ---

LOW, HIGH = f32(0.2), f32(0.28)


def ratio_of(d):
    return exp(clamp(d, -20, 20))


def clipped(r, a):
    return largest(-r * a, -clamp(r, 1 - LOW, 1 + HIGH) * a)


def dual_clipped(r, a, c):
    return smallest(clipped(r, a), -c * a) if a < 0 else clipped(r, a)


class Sample:
    def __init__(self, data, lp, entropy):
        self.data, self.t = data, rows(data)
        self.lp = [lp[t] for t in self.t]
        self.h = [entropy[t] for t in self.t]
        pick = lambda name: [data[name][t] for t in self.t]
        self.old, self.sampled, self.ref, self.a = pick("policy_logprobs"), pick("sampled_logprobs"), pick("ref_logprobs"), pick("advantages")
        self.d = [x - y for x, y in zip(self.lp, self.old)]
        self.n = len(self.t)


def each(term):
    return lambda s: [term(s, i) for i in range(s.n)]


def sequence(s):
    r = ratio_of(sum(s.d, Dual(0)) / s.n)
    return [clipped(r, a) for a in s.a]


def sapo(s, i):
    tau = 1.0 if s.a[i] > 0 else f32(1.05)
    return -s.a[i] * (4 / tau) * (1 / (1 + exp(-tau * (ratio_of(s.d[i]) - 1))))


def geometric(s):
    bounded = [smallest(d, HIGH) if a > 0 else largest(d, -LOW) for d, a in zip(s.d, s.a)]
    return [-mean(s.a) * exp(sum(bounded, Dual(0)) / s.n)] * s.n


def dppo(within):
    def term(s, i):
        p, q = math.exp(s.lp[i].value), math.exp(s.old[i])
        return -stop(smallest(ratio_of(s.d[i]), 20)) * s.a[i] * s.lp[i] if within(p, q, s.a[i]) else Dual(0)
    return each(term)


MOVED_LOW, MOVED_HIGH = f32(0.02), f32(0.03)


def within_tv(p, q, a):
    return p - q <= MOVED_HIGH if a > 0 else p - q >= -MOVED_LOW


def within_kl(p, q, a):
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    return kl <= MOVED_HIGH or p <= q if a > 0 else kl <= MOVED_LOW or p >= q


def prime(s, i):
    moved = math.exp(s.lp[i].value) - math.exp(s.sampled[i])
    keep = not (moved > f32(0.2) if s.a[i] > 0 else moved < -f32(0.2))
    return -ratio_of(s.lp[i] - s.sampled[i]) * s.a[i] if keep else Dual(0)


def vespo(s):
    total = sum(max(-20, min(20, d.value)) for d in s.d)
    total = max(math.log(1e-8), min(20, total))
    result = []
    for lp, a in zip(s.lp, s.a):
        k, l = (2, 3) if a >= 0 else (3, 2)
        result.append(-math.exp(l + k * total - l * math.exp(total)) * a * lp)
    return result


OBJECTIVES = {
    "vanilla": each(lambda s, i: clipped(ratio_of(s.d[i]), s.a[i])),
    "dual_clip": each(lambda s, i: dual_clipped(ratio_of(s.d[i]), s.a[i], 1.5)),
    "importance_sampling": each(lambda s, i: -ratio_of(s.d[i]) * s.a[i]),
    "reinforce": each(lambda s, i: -s.a[i] * s.lp[i]),
    "gspo": sequence,
    "cispo": each(lambda s, i: -stop(clamp(ratio_of(s.d[i]), 1 - LOW, 1 + HIGH)) * s.a[i] * s.lp[i]),
    "cispo_absolute": each(lambda s, i: -stop(clamp(ratio_of(s.d[i]), 0, 1.25)) * s.a[i] * s.lp[i]),
    "sapo": each(sapo),
    "geo_mean": geometric,
    "dppo_tv": dppo(within_tv),
    "dppo_kl": dppo(within_kl),
    "prime": each(prime),
    "dro": each(lambda s, i: -(s.lp[i] * s.a[i] - f32(0.05) / 2 * s.d[i] * s.d[i])),
    "vespo": vespo,
}


def low_var(k1):
    return exp(-k1) - 1 + k1


KL = {"k1": lambda k: k, "abs": absolute, "k2": lambda k: k * k / 2, "k3": low_var, "low_var_kl": lambda k: smallest(low_var(k), 10)}
KL["k3+"] = lambda k: k * k / 2 + stop(low_var(k) - k * k / 2)
KL["low_var_kl+"] = lambda k: k * k / 2 + stop(smallest(low_var(k), 10) - k * k / 2)


def reduced(values, rollout, how):
    """values: per sample the duals of its rows."""
    sums, counts = [sum(v, Dual(0)) for v in values], [len(v) for v in values]
    if how == "seq-mean-token-mean":
        return sum((s / n for s, n in zip(sums, counts) if n), Dual(0)) / len(rollout)
    total = sum(sums, Dual(0))
    return total / {"token-mean": sum(counts), "token-sum": 1, "seq-mean-token-sum": len(rollout),
                    "seq-mean-token-sum-norm": len(rollout) * 16}[how]


def loss_value(rollout, lp, entropy, case):
    values = []
    if case.get("without_truncated"):
        rollout = without_truncated(rollout)
    for data, sample_lp, sample_h in zip(rollout, lp, entropy):
        s = Sample(data, sample_lp, sample_h)
        if s.n == 0:
            values.append([])
            continue
        terms = OBJECTIVES[case["objective"]](s)
        moved = mean([b - lp.value for b, lp in zip(s.sampled if case.get("from_sampler") else s.old, s.lp)])
        for i, t in enumerate(s.t):
            if "opsm_delta" in case and moved > f32(case["opsm_delta"]) and s.a[i] < 0:
                terms[i] = Dual(0)
            if case.get("weights"):
                terms[i] = terms[i] * data["policy_weights"][t]
            if case["objective"] == "prime":
                d = s.lp[i] - s.sampled[i]
                terms[i] = terms[i] + f32(1e-3) * d * d
            if case.get("penalty"):
                terms[i] = terms[i] + 0.5 * absolute(s.d[i])
            terms[i] = terms[i] - f32(case.get("entropy_coef", 0)) * s.h[i]
            if case.get("kl"):
                kl = KL[case["kl"]](s.lp[i] - s.ref[i])
                if case.get("unbiased"):
                    kl = ratio_of(s.d[i]) * low_var(s.lp[i] - s.ref[i]) if "low_var" in case["kl"] else ratio_of(s.d[i]) * kl
                    kl = smallest(kl, 10) if "low_var" in case["kl"] else kl
                terms[i] = terms[i] + f32(0.1) * kl
        values.append(terms)
    return reduced(values, rollout, case.get("reduction", "seq-mean-token-mean"))


def evaluate(rollout, case):
    def at(sample, row, field):
        seeded = lambda name: [[Dual(x, 1.0 if (name, i, t) == (field, sample, row) else 0.0) for t, x in enumerate(s[name])]
                               for i, s in enumerate(rollout)]
        return loss_value(rollout, seeded("logprob"), seeded("entropy"), case)

    gradient = lambda field: [at(i, t, field).slope for i, s in enumerate(rollout) for t in range(len(s["weights"]))]
    return {**case, "loss": at(-1, -1, "").value, "d_logprob": gradient("logprob"),
            "d_entropy": gradient("entropy") if case.get("entropy_coef") else []}


def cases():
    for objective in OBJECTIVES:
        yield {"objective": objective}
        yield {"objective": objective, "weights": True, "entropy_coef": 0.01, "reduction": "token-mean"}
    for kl in KL:
        yield {"objective": "vanilla", "kl": kl}
        if kl in ("k1", "k2", "k3", "low_var_kl"):
            yield {"objective": "vanilla", "kl": kl, "unbiased": True}
    for reduction in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"):
        yield {"objective": "vanilla", "entropy_coef": 0.01, "reduction": reduction}
    yield {"objective": "importance_sampling", "penalty": True}
    for objective in ("vanilla", "gspo"):
        yield {"objective": objective, "opsm_delta": 0.05, "weights": True}
    yield {"objective": "vanilla", "opsm_delta": 0.05, "from_sampler": True}
    yield {"objective": "vanilla", "without_truncated": True}
    yield {"objective": "gspo", "without_truncated": True, "reduction": "token-mean"}


# --- pairs: samples 0 and 1, 2 and 3, 4 and 5, chosen first ---

PAIRS, BETA, GAMMA = [(0, 1), (2, 3), (4, 5)], f32(0.25), f32(0.5)


def log_sigmoid(x):
    return -log(1 + exp(-x))


def pair_loss(kind, rollout, lp):
    total = Dual(0)
    for pair in PAIRS:
        s, mean_s, m = [], [], []
        for i in pair:
            t = rows(rollout[i])
            s.append(sum((lp[i][u] - rollout[i]["ref_logprobs"][u] for u in t), Dual(0)))
            m.append(sum((lp[i][u] for u in t), Dual(0)) / len(t))
            mean_s.append(s[-1] / len(t))
        if kind == "sigmoid":
            total = total - log_sigmoid(BETA * (s[0] - s[1]))
        elif kind == "ipo":
            distance = mean_s[0] - mean_s[1] - 1 / (2 * BETA)
            total = total + distance * distance
        elif kind == "simpo":
            total = total - log_sigmoid(BETA * (m[0] - m[1]) - GAMMA)
        else:
            odds = [x - log(1 - exp(x)) for x in m]
            total = total - m[0] - BETA * log_sigmoid(odds[0] - odds[1])
    return total / len(PAIRS)


def preferences(rollout):
    last = PAIRS[-1][1] + 1
    at = lambda kind, sample, row: pair_loss(kind, rollout, [[Dual(x, 1.0 if (i, t) == (sample, row) else 0.0) for t, x in enumerate(s["logprob"])]
                                                            for i, s in enumerate(rollout)])
    return {kind: {"loss": at(kind, -1, -1).value,
                   "d_logprob": [at(kind, i, t).slope for i, s in enumerate(rollout[:last]) for t in range(len(s["weights"]))]}
            for kind in ("sigmoid", "ipo", "simpo", "orpo")}


# --- KTO: every sample by itself, two of three desirable ---

WEIGHTS = f32(1.25), f32(0.75)


def kto_loss(rollout, lp, kl):
    total = Dual(0)
    for i, sample in enumerate(rollout):
        s = sum((lp[i][t] - sample["ref_logprobs"][t] for t in rows(sample)), Dual(0))
        wanted = i % 3 != 0
        z = BETA * (s - kl) if wanted else BETA * (kl - s)
        total = total + WEIGHTS[0 if wanted else 1] * (1 - 1 / (1 + exp(-z)))
    return total / len(rollout)


def kto(rollout):
    kl = max(0, mean([sum(s["sampled_logprobs"][t] - s["ref_logprobs"][t] for t in rows(s)) for s in rollout]))
    at = lambda sample, row: kto_loss(rollout, [[Dual(x, 1.0 if (i, t) == (sample, row) else 0.0) for t, x in enumerate(s["logprob"])]
                                                for i, s in enumerate(rollout)], kl)
    return {"kl": kl, "loss": at(-1, -1).value,
            "d_logprob": [at(i, t).slope for i, s in enumerate(rollout) for t in range(len(s["weights"]))]}


# --- corrections: rules are [measure, level, action, low, high] ---

CORRECTIONS = [
    {"rules": [["ratio", "token", "truncate", 0.98, 1.02]]},
    {"rules": [["ratio", "token", "mask", 0.98, 1.02]]},
    {"rules": [["ratio", "seq_sum", "truncate", 0.99, 1.05]], "normalize": True},
    {"rules": [["ratio", "seq_mean", "mask", 0.995, 1.01]]},
    {"rules": [["ratio", "seq_max", "reject", 0, 1.04]]},
    {"rules": [["k1", "token", "reject", -0.02, 0.02]]},
    {"rules": [["k2", "seq_sum", "reject", 0, 0.002]]},
    {"rules": [["k3", "seq_mean", "mask", 0, 0.0005]]},
    {"rules": [["k2", "seq_max", "reject", 0, 0.001]]},
    {"rules": [["ratio", "token", "truncate", 0, 1.01], ["k3", "token", "reject", 0, 0.0008]], "normalize": True},
    {"rules": [], "veto": 0.96},
]


def corrected(rollout, case):
    measures = {"ratio": math.exp, "k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - 1 - d}
    weights = []
    for s in rollout:
        d = [s["policy_logprobs"][t] - s["sampled_logprobs"][t] for t in rows(s)]
        w = [1.0] * len(d)
        for name, level, action, low, high in case["rules"]:
            of_rows = [measures[name](x) for x in d]
            if level != "token" and d:
                over = d if name == "ratio" else of_rows
                whole = {"seq_sum": sum(over), "seq_mean": mean(over), "seq_max": max(over)}[level]
                of_rows = [math.exp(whole) if name == "ratio" else whole] * len(d)
            for i, m in enumerate(of_rows):
                inside = low <= m <= high
                w[i] *= max(low, min(high, m)) if action == "truncate" else 0 if not inside else m if action == "mask" and name == "ratio" else 1
        if case.get("veto") and any(math.exp(x) < case["veto"] for x in d):
            w = [0.0] * len(d)
        weights.append(w)
    flat = [x for w in weights for x in w]
    report = {"mean_weight": mean(flat), "ess_ratio": mean([sum(w) ** 2 / (len(w) * sum(x * x for x in w)) if any(w) else 0 for w in weights if w])}
    if case.get("normalize"):
        weights = [[x / report["mean_weight"] for x in w] for w in weights]
    spread = [[dict(zip(rows(s), w)).get(t, 1.0) for t in range(len(s["weights"]))] for s, w in zip(rollout, weights)]
    return {**case, **report, "weights": spread}


# --- rows that a statistic of the step chooses ---

def choices(rollout):
    places = [(i, t) for i, s in enumerate(rollout) for t in rows(s)]
    a = mean([rollout[i]["advantages"][t] for i, t in places])
    lp = mean([rollout[i]["logprob"][t] for i, t in places])
    covariance = {(i, t): (rollout[i]["advantages"][t] - a) * (rollout[i]["logprob"][t] - lp) for i, t in places}
    count = max(1, int(0.1 * len(places)))
    entropies = sorted(rollout[i]["entropy"][t] for i, t in places)
    rank = 0.75 * (len(entropies) - 1)
    low = int(rank)
    threshold = entropies[low] + (rank - low) * (entropies[min(low + 1, len(entropies) - 1)] - entropies[low])

    def is_open(i, t):
        s = rollout[i]
        d, x = s["logprob"][t] - s["policy_logprobs"][t], s["advantages"][t]
        r = math.exp(d)
        return -max(1 - LOW, min(1 + HIGH, r)) * x <= -r * x

    return {"kl_cov": sorted(sorted(places, key=lambda p: -covariance[p])[:count]), "count": count,
            "clip_cov_candidates": [p for p in places if 0.1 < covariance[p] < 5 and is_open(*p)],
            "low_entropy": [p for p in places if rollout[p[0]]["entropy"][p[1]] < threshold]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    rollout = make_rollout()
    written = {"rollout": rollout, "advantages": advantages(rollout), "losses": [evaluate(rollout, case) for case in cases()],
               "choices": choices(rollout), "preferences": preferences(rollout), "kto": kto(rollout),
               "corrections": [corrected(rollout, case) for case in CORRECTIONS]}
    lines = [f"{json.dumps(key)}: " + ("[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value))
             for key, value in written.items()]
    out.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
