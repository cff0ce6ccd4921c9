#!/usr/bin/env python3
"""SmolLM2-135M-Instruct on GSM8K: `sft` teaches answers that end in \\boxed{}, GRPO with `--rm-type math` goes on from there.

    bench/smollm2_boxed.py --lockstep build/release/lockstep --model SMOLLM2 --gsm8k DIR [--out DIR] [--rollouts 160] [--seconds 450]

DIR has train.jsonl[.xz] and test.jsonl[.xz] with rows {question, answer}. Held-out questions are answered before sft, between and after:
greedily, and at temperature 1 (pass@1 and pass@4). After --seconds the GRPO run is asked to stop, and what it reached counts. Writes one
record under bench/records/, with the reward of every rollout, and copies it and the runs' metrics.jsonl to --out. Draw the curve with
tools/plot_curve.py OUT/grpo --out docs/images/smollm2-boxed.png. Fails unless GRPO begins at a reward of 0.02 and ends above it.
"""
import argparse
import json
import lzma
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from record import ROOT, write_record

WANTED_START = 0.02

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True, type=pathlib.Path)
parser.add_argument("--model", required=True)
parser.add_argument("--gsm8k", required=True, type=pathlib.Path)
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--seconds", type=float, default=450, help="of everything; GRPO gets what sft and evaluations leave")
parser.add_argument("--rollouts", type=int, default=160)
parser.add_argument("--prompts", type=int, default=64, help="of a rollout")
parser.add_argument("--samples", type=int, default=16, help="of a prompt")
parser.add_argument("--new-tokens", type=int, default=256)
parser.add_argument("--sft-epochs", type=int, default=2)
parser.add_argument("--sft-rows", type=int, default=100_000)
parser.add_argument("--test-rows", type=int, default=500)
parser.add_argument("--lr", default="1e-4", help="of GRPO")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--device", default=None, help="as the program's flag; left out: its default")
options = parser.parse_args()
began = time.monotonic()
work = pathlib.Path(tempfile.mkdtemp())
lockstep = options.lockstep.resolve()
machine_flags = ["--device", options.device] if options.device else []


def read(name, most):
    path = next(p for p in (options.gsm8k / f"{name}.jsonl", options.gsm8k / f"{name}.jsonl.xz") if p.exists())
    with lzma.open(path, "rt") if path.suffix == ".xz" else open(path) as file:
        return [json.loads(line) for _, line in zip(range(most), file)]


def write(name, rows):
    path = work / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def boxed(answer):
    """GSM8K's solution without its calculator marks, and its answer in a box."""
    steps, number = re.sub(r"<<.*?>>", "", answer).rsplit("####", 1)
    return f"{steps.strip()}\nThe answer is \\boxed{{{number.strip().replace(',', '')}}}."


def question(row):
    return [{"role": "user", "content": row["question"]}]


def run(*arguments, seconds=None):
    """Its output; after `seconds` it is asked to stop, and saves."""
    command = [str(a) for a in (lockstep, *arguments, *machine_flags)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            text, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            text, _ = process.communicate()
            print("stopped at the end of its time", flush=True)
        else:
            if process.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\n{text}")
    return text


def adapter_of(directory):
    return sorted(directory.glob("iter_*"))[-1] / "lora_adapter"


def evaluated(name, adapter=None):
    text = run("eval", "--hf-checkpoint", options.model, "--prompt-data", test, *grading, "--max-tokens", options.new_tokens,
               "--temperature", 0, 1, "--n", 4, "--log-passrate", "--num-examples", 1, *(["--lora-adapter-path", adapter] if adapter else []))
    shown = [float(x) for x in re.findall(r"accuracy ([0-9.]+)", text)]
    rates = {k: float(v) for k, v in re.findall(r"(pass@\d+)[ =:]+([0-9.]+)", text)}
    result = {"greedy": shown[0], "temperature_1": shown[-1], **rates}
    print(f"{name}: {result}, after {time.monotonic() - began:.0f} s", flush=True)
    return result, text


train_rows, test_rows = read("train", options.sft_rows), read("test", options.test_rows)
grading = ["--input-key", "messages", "--label-key", "label", "--rm-type", "math"]
taught = write("sft.jsonl", [{"messages": question(row) + [{"role": "assistant", "content": boxed(row["answer"])}]} for row in train_rows])
prompts = write("train.jsonl", [{"messages": question(row), "label": row["answer"]} for row in train_rows])
test = write("test.jsonl", [{"messages": question(row), "label": row["answer"]} for row in test_rows])

lora = ["--lora-rank", 32, "--lora-alpha", 32, "--target-modules", "all-linear"]
sft_flags = [*lora, "--input-key", "messages", "--global-batch-size", 64, "--num-epoch", options.sft_epochs, "--max-seq-length", 768,
             "--lr", "1e-3", "--lr-decay-style", "linear", "--lr-warmup-fraction", 0.05, "--rollout-shuffle", "--seed", options.seed]
grpo_flags = [*grading, "--num-rollout", options.rollouts, "--rollout-batch-size", options.prompts, "--n-samples-per-prompt", options.samples,
              "--rollout-max-response-len", options.new_tokens, "--max-num-seqs", min(1024, options.prompts * options.samples),
              "--rollout-shuffle", "--advantage-estimator", "grpo", "--lr", options.lr, "--target-modules", "all-linear",
              "--seed", options.seed, "--rollout-seed", options.seed]

before, _ = evaluated("as published")
run("sft", "--hf-checkpoint", options.model, "--prompt-data", taught, *sft_flags, "--save", work / "sft")
after_sft, _ = evaluated("after sft", adapter_of(work / "sft"))
left = max(30.0, options.seconds - 1.3 * (time.monotonic() - began))
run("train", "--hf-checkpoint", options.model, "--prompt-data", prompts, *grpo_flags, "--lora-adapter-path", adapter_of(work / "sft"),
    "--save", work / "grpo", "--save-interval", 20, seconds=left)
after_grpo, example = evaluated("after GRPO", adapter_of(work / "grpo"))

lines = {name: [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()] for name in ("sft", "grpo")}
rewards = [line["reward"] for line in lines["grpo"] if line.get("reward") is not None]
mean = lambda values: sum(values) / len(values)
bench = work / "bench.json"
run("bench", "--hf-checkpoint", options.model, "--decode-batch", 1, "--new-tokens", 8, "--json", bench)
about = json.loads(bench.read_text())
shown = lambda flags: " ".join(map(str, flags))
path = write_record("smollm2-boxed", f"bench/smollm2_boxed.py --rollouts {options.rollouts} --prompts {options.prompts} --samples {options.samples} "
                    f"--new-tokens {options.new_tokens} --sft-epochs {options.sft_epochs} --lr {options.lr} --seed {options.seed}", about["machine"],
                    {"commit": about["commit"], "model": pathlib.Path(options.model).name, "sft": shown(sft_flags), "grpo": shown(grpo_flags),
                     "rows": {"train": len(train_rows), "test": len(test_rows)}, "before": before, "after_sft": after_sft, "after_grpo": after_grpo,
                     "sft_loss": [round(line["loss"], 4) for line in lines["sft"] if "eval" not in line][:: max(1, len(lines["sft"]) // 50)],
                     "rollouts": len(rewards), "reward_first_5": mean(rewards[:5]), "reward_last_10": mean(rewards[-10:]),
                     "reward": [round(r, 4) for r in rewards],
                     "response_len": [round(line["response_len"], 1) for line in lines["grpo"] if line.get("reward") is not None],
                     "rollout_ms": mean([line["rollout_ms"] for line in lines["grpo"] if "rollout_ms" in line]),
                     "train_ms": mean([line["train_ms"] for line in lines["grpo"] if "train_ms" in line])})
print(path)
if options.out:
    for name in ("sft", "grpo"):
        (options.out / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(work / name / "metrics.jsonl", options.out / name / "metrics.jsonl")
    shutil.copy(ROOT / path, options.out / path.name)
    (options.out / "example.txt").write_text(example)
if mean(rewards[:5]) < WANTED_START or mean(rewards[-10:]) <= mean(rewards[:5]):
    raise SystemExit(f"reward {mean(rewards[:5]):.4f} at the beginning, {mean(rewards[-10:]):.4f} at the end")
