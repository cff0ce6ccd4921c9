"""Methods of docs/rl.md on the embedded model: held-out accuracy after training, three seeds each.

    bench/rl_methods.py --lockstep build/release/lockstep [--jobs 2] [--only rloo gspo] [--seeds 1 2 3] [--rollouts 80] [--work DIR]

Fails unless every run reaches an accuracy of 0.9, GRPO 0.98, rank 1 the mean of rank 32 to within 0.02, and rollouts sampled ahead that of GRPO in turn. Writes one record under bench/records/,
with the reward of every rollout. With --work each run that ends is kept there, and the same call goes on with those that are missing.
"""
import argparse
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from record import ROOT, write_record

WANTED, WANTED_GRPO, WANTED_ALIKE = 0.9, 0.98, 0.02
METHODS = {
    "grpo": [],
    "dr_grpo": ["--advantage-estimator", "dr_grpo"],
    "rloo": ["--advantage-estimator", "rloo"],
    "opo": ["--advantage-estimator", "opo"],
    "reinforce_plus_plus": ["--advantage-estimator", "reinforce_plus_plus"],
    "reinforce_plus_plus_baseline": ["--advantage-estimator", "reinforce_plus_plus_baseline"],
    "gspo": ["--advantage-estimator", "gspo", "--eps-clip", "3e-3", "--eps-clip-high", "4e-3", "--num-steps-per-rollout", "2"],
    "cispo": ["--advantage-estimator", "cispo", "--eps-clip", "1", "--eps-clip-high", "0.28", "--num-steps-per-rollout", "2"],
    "sapo": ["--policy-loss", "sapo", "--num-steps-per-rollout", "2"],
    "geo_mean": ["--policy-loss", "geo_mean", "--eps-clip", "0.4", "--num-steps-per-rollout", "2"],
    "dapo": ["--eps-clip-high", "0.28", "--calculate-per-token-loss", "--num-steps-per-rollout", "2"],
    "ppo": ["--advantage-estimator", "ppo", "--lambd", "0.95", "--critic-lr", "5e-3", "--num-critic-only-steps", "2", "--normalize-advantages"],
    "ahead": ["--max-staleness", "1"],
    # One alpha for every rank (scale alpha / r): then one learning rate suits all ranks. Schulman et al., "LoRA Without Regret" (2025).
    "rank_1": ["--lora-rank", "1", "--lora-alpha", "32"],
    "rank_32": ["--lora-rank", "32", "--lora-alpha", "32"],
    "kl_cov": ["--policy-loss", "kl_cov", "--kl-cov-ratio", "0.01", "--num-steps-per-rollout", "2"],
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True, type=pathlib.Path)
parser.add_argument("--jobs", type=int, default=1)
parser.add_argument("--only", nargs="*", choices=[*METHODS, "opd"])
parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
parser.add_argument("--rollouts", type=int, default=80)
parser.add_argument("--work", type=pathlib.Path, help="what ended is kept here, and not run again")
parser.add_argument("--out", type=pathlib.Path, help="write the record's values here instead")
options = parser.parse_args()
work = options.work or pathlib.Path(tempfile.mkdtemp())
work.mkdir(parents=True, exist_ok=True)
model = ROOT / "models/arith"
lockstep = options.lockstep.resolve()
prompts = ["--input-key", "prompt", "--label-key", "label", "--rm-type", "number"]


def train(name, seed, flags):
    """The accuracy, greedy, and the reward of every rollout."""
    run = work / f"{name}-{seed}"
    if "--lora-rank" not in flags:
        flags = ["--lora-rank", "8", "--lora-alpha", "16", *flags]
    if run.exists():
        shutil.rmtree(run)  # of a call that was stopped
    subprocess.run([lockstep, "train", "--hf-checkpoint", model, "--prompt-data", model / "train.jsonl", *prompts, "--threads", "1",
                    "--num-rollout", str(options.rollouts), "--rollout-batch-size", "32", "--n-samples-per-prompt", "8",
                    "--rollout-max-response-len", "24", "--rollout-shuffle", "--lr", "2e-3",
                    "--target-modules", "all-linear", "--seed", str(seed), "--rollout-seed", str(seed), "--save", run, *flags],
                   check=True, capture_output=True)
    text = subprocess.run([lockstep, "eval", "--hf-checkpoint", model, "--prompt-data", model / "test.jsonl", *prompts, "--threads", "1",
                           "--max-tokens", "24", "--lora-adapter-path", adapter_of(run)], check=True, capture_output=True, text=True).stdout
    rewards = [json.loads(line)["reward"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float(re.search(r"accuracy ([0-9.]+)", text).group(1)), rewards


def adapter_of(run):
    return run / f"iter_{options.rollouts:07d}" / "lora_adapter"


def distil(seed):
    """A student that sees no reward learns from a teacher that GRPO made."""
    train("teacher", seed, [])
    return train("opd", seed, ["--advantage-estimator", "on_policy_distillation", "--opd-teacher-load", adapter_of(work / f"teacher-{seed}")])


def measured(job):
    name, seed = job
    kept = work / f"{name}-{seed}-{options.rollouts}.json"
    if kept.exists():
        accuracy, rewards = json.loads(kept.read_text())
    else:
        accuracy, rewards = distil(seed) if name == "opd" else train(name, seed, METHODS[name])
        kept.write_text(json.dumps([accuracy, rewards]))
    print(f"{name:30} seed {seed}: accuracy {accuracy:.3f}", flush=True)
    return accuracy, rewards


names = options.only or [*METHODS, "opd"]
jobs = [(name, seed) for name in names for seed in options.seeds]
with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
    results = list(pool.map(measured, jobs))
values = {name: [{"seed": seed, "accuracy": result[0], "reward": [round(r, 4) for r in result[1]]}
                 for (job, seed), result in zip(jobs, results) if job == name] for name in names}
if options.out:
    options.out.write_text(json.dumps(values))
else:
    about = work / "bench.json"  # the commit is the binary's
    subprocess.run([lockstep, "bench", "--hf-checkpoint", model, "--device", "cpu", "--decode-batch", "1", "--new-tokens", "8", "--json", about],
                   check=True, capture_output=True)
    about = json.loads(about.read_text())
    machine, commit = {**about["machine"], "threads": options.jobs}, about["commit"]
    only = f" --only {' '.join(options.only)}" if options.only else ""
    print(write_record("rl-methods" + "".join("-" + name for name in options.only or []).replace("_", ""),
                       f"bench/rl_methods.py --rollouts {options.rollouts}{only}", machine,
                       {"commit": commit, "rollouts": options.rollouts, "methods": {n: v for n, v in zip(METHODS, METHODS.values())},
                        "runs": values}))
low = [f"{name} seed {run['seed']}: accuracy {run['accuracy']}" for name, runs in values.items() for run in runs
       if run["accuracy"] < (WANTED_GRPO if name == "grpo" else WANTED)]
mean = {name: sum(run["accuracy"] for run in runs) / len(runs) for name, runs in values.items()}
for one, other in (("rank_1", "rank_32"), ("ahead", "grpo")):
    if one in mean and other in mean and abs(mean[one] - mean[other]) > WANTED_ALIKE:
        low.append(f"{one} {mean[one]:.4f}, {other} {mean[other]:.4f}")
if low:
    raise SystemExit("too low: " + "; ".join(low))
