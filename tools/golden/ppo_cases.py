#!/usr/bin/env python3
"""Writes advantages, returns and value losses of PPO for a small random rollout, from their formulas, in double precision.

  python3 tools/golden/ppo_cases.py --out tests/golden/rl/ppo.json
  (then tools/golden/make_goldens.py --manifest records the file in MANIFEST.json)

The rollout is that of rl_cases.py: groups of several sizes, equal rewards, samples of several turns, one that is wholly masked; every
second sample counts as cut at its longest, which changes nothing, because nothing is bootstrapped. Advantages are the sums of
discounted TD errors as GAE defines them (arXiv 1506.02438, equation 16), not the recursion of the program; gradients of the loss are
those of dual numbers.
"""
import argparse
import json
import pathlib
import random

from rl_cases import Dual, KL, clamp, f32, largest, make_rollout, mean, reduced, rows, std, whitened

SEED = 22


def with_values(rollout):
    rng = random.Random(SEED)
    for i, s in enumerate(rollout):
        draw = lambda scale, around: [f32(x + rng.choice(scale) * rng.uniform(-1, 1)) for x in around]
        length = len(s["weights"])
        s["values"] = draw([1.0], [0.3] * length)
        s["value"] = draw([0.05, 0.3, 1.5], s["values"])  # of the critic after some steps
        s["returns"] = draw([0.5], [0.5] * length)
        s["truncated"] = i % 2 == 0
    return rollout


def gae(rollout, case):
    gamma, lambd = case["gamma"], case["lambda"]
    advantages, returns = [], []
    for s in rollout:
        steps = rows(s)
        v = [s["values"][t] for t in steps] + [0.0]
        r = [-case["kl_coef"] * KL["k1"](Dual(s["policy_logprobs"][t] - s["ref_logprobs"][t])).value for t in steps]
        if steps:
            r[-1] += s["reward"]
        delta = [r[k] + gamma * v[k + 1] - v[k] for k in range(len(steps))]
        a, g = [0.0] * len(s["weights"]), [0.0] * len(s["weights"])
        for k, t in enumerate(steps):
            a[t] = sum((gamma * lambd) ** (j - k) * delta[j] for j in range(k, len(steps)))
            g[t] = a[t] + v[k]
        advantages.append(a)
        returns.append(g)
    flat = [(g[t], s["values"][t]) for s, g in zip(rollout, returns) for t in rows(s)]
    explained = 1 - std([g - v for g, v in flat]) ** 2 / (std([g for g, _ in flat]) ** 2 + 1e-5)
    if case["whiten"]:
        advantages = whitened(advantages, rollout)
    return {**case, "advantages": advantages, "returns": returns, "explained_variance": explained}


# slime's and miles' value_loss_function; clip 0 is the squared error.
def value_loss(rollout, value, case):
    terms = []
    for s, new in zip(rollout, value):
        of_sample = []
        for t in rows(s):
            direct = new[t] - s["returns"][t]
            held = s["values"][t] + clamp(new[t] - s["values"][t], -case["clip"], case["clip"]) - s["returns"][t]
            of_sample.append(largest(direct * direct, held * held) if case["clip"] else direct * direct)
        terms.append(of_sample)
    return reduced(terms, rollout, case["reduction"])


def evaluate(rollout, case):
    def at(sample, row):
        return value_loss(rollout, [[Dual(x, 1.0 if (i, t) == (sample, row) else 0.0) for t, x in enumerate(s["value"])]
                                    for i, s in enumerate(rollout)], case)

    moved = [[1.0 if abs(s["value"][t] - s["values"][t]) > case["clip"] else 0.0 for t in rows(s)] for s in rollout]
    share = mean([x for m in moved for x in m]) if case["reduction"] != "seq-mean-token-mean" else sum(mean(m) for m in moved if m) / len(rollout)
    return {**case, "loss": at(-1, -1).value, "clip_fraction": share if case["clip"] else 0.0,
            "d_value": [at(i, t).slope for i, s in enumerate(rollout) for t in range(len(s["weights"]))]}


GAE = [{"gamma": g, "lambda": l, "kl_coef": k, "whiten": w} for g, l, k, w in
       ((1, 1, 0, False), (1, 0.95, 0, False), (0.9, 0.8, 0.05, False), (0.99, 0, 0, False), (0, 1, 0.1, False), (1, 0.95, 0.05, True))]
LOSSES = [{"clip": f32(clip), "reduction": reduction} for clip in (0.2, 0.5, 0)
          for reduction in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    rollout = with_values(make_rollout())
    written = {"rollout": rollout, "gae": [gae(rollout, case) for case in GAE], "losses": [evaluate(rollout, case) for case in LOSSES]}
    lines = [f"{json.dumps(key)}: " + "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" for key, value in written.items()]
    out.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
