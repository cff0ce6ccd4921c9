#!/usr/bin/env python3
"""Runs the same fixed-seed work with two builds of lockstep and compares everything they write, byte by byte.

    compare_binaries.py OLD NEW [--model models/arith] [--work DIR] [--device cpu] [--only PART ...]

Parts: grpo (with a KL loss and an evaluation; saved twice), resume (interrupted after two rollouts), sft, dpo, generate, score,
eval, and serve (completions, chosen tokens, adapters loaded, replaced, pinned and unloaded). Times, speeds and random ids are
left out of the comparison. Exit status 1 and a list if anything else differs.
"""
import argparse
import filecmp
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

TIMES = re.compile(r"_ms$|_per_s$|_seconds$")
UNSTABLE_FIELDS = {"id", "created", "created_at", "e2e_latency", "request_id", "system_fingerprint", "loaded_at"}


def rows_of(model, name):
    return [json.loads(line) for line in (model / name).read_text().splitlines()]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Build:
    """One binary at work in a directory of its own, which is the working directory, so that paths in outputs are the same."""

    def __init__(self, binary, model, directory, device):
        self.binary, self.directory, self.device = binary.resolve(), directory, device
        directory.mkdir(parents=True)
        (directory / "model").symlink_to(model.resolve())
        rows = rows_of(model, "train.jsonl")
        write_rows(directory / "rl.jsonl", rows[:64])
        write_rows(directory / "held_out.jsonl", rows_of(model, "test.jsonl")[:20])
        write_rows(directory / "sft.jsonl", [{"prompt": r["prompt"], "completion": r["label"]} for r in rows[:40]])
        write_rows(directory / "dpo.jsonl",
                   [{"prompt": r["prompt"], "chosen": r["label"], "rejected": str(int(r["label"]) + 1)} for r in rows[:24]])
        write_rows(directory / "texts.jsonl", [{"text": r["prompt"] + r["label"]} for r in rows[:20]])

    def run(self, command, *arguments, keep_output=None):
        line = [self.binary, command, "--hf-checkpoint", "model", "--device", self.device, *arguments]
        done = subprocess.run([str(part) for part in line], cwd=self.directory, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, line))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
        if keep_output:
            (self.directory / keep_output).write_text(done.stdout)

    def train(self, save, rollouts, *more):
        self.run("train", "--prompt-data", "rl.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "math",
                 "--num-rollout", rollouts, "--rollout-batch-size", 8, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 12,
                 "--global-batch-size", 16, "--advantage-estimator", "grpo", "--rollout-shuffle", "--lr", "2e-3", "--lora-rank", 8,
                 "--lora-alpha", 16, "--target-modules", "all-linear", "--use-kl-loss", "--kl-loss-coef", 0.01,
                 "--rollout-temperature", 0.9, "--eval-prompt-data", "held", "held_out.jsonl", "--eval-interval", 2,
                 "--save", save, "--save-interval", 2, *more)

    def supervised(self, save, data, *more):
        self.run("sft", "--prompt-data", data, "--num-epoch", 2, "--global-batch-size", 8, "--rollout-shuffle", "--lr", "1e-3",
                 "--lora-rank", 4, "--target-modules", "all-linear", "--save", save, *more)

    def grpo(self):
        self.train("grpo", 4)

    def resume(self):
        self.train("resume", 2)
        self.train("resume", 4, "--load", "resume")

    def sft(self):
        self.supervised("sft", "sft.jsonl", "--lora-dropout", 0.1)

    def dpo(self):
        self.supervised("dpo", "dpo.jsonl", "--loss-type", "dpo_loss")

    def adapter(self, iteration):
        return f"grpo/iter_{iteration:07}/lora_adapter"

    def generate(self):
        common = ["--input", "held_out.jsonl", "--input-key", "prompt", "--max-tokens", 12, "--n", 3, "--temperature", 0.8,
                  "--logprobs", 2, "--prompt-logprobs", 1]
        self.run("generate", *common, "--output", "base.jsonl")
        self.run("generate", *common, "--lora-adapter-path", self.adapter(4), "--output", "adapter.jsonl")
        self.run("generate", "--prompt", "12+34=", "--max-tokens", 8, "--lora-adapter-path", self.adapter(2),
                 keep_output="one.txt")

    def score(self):
        self.run("score", "--input", "texts.jsonl", "--output", "score.jsonl", "--lora-adapter-path", self.adapter(4),
                 keep_output="score.txt")

    def eval(self):
        self.run("eval", "--prompt-data", "held_out.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "math",
                 "--max-tokens", 12, "--lora-adapter-path", self.adapter(4), keep_output="eval.txt")

    def serve(self):
        line = [self.binary, "serve", "--hf-checkpoint", "model", "--served-model-name", "base", "--device", self.device, "--port", 0,
                "--lora-modules", f"first={self.adapter(2)}"]
        with open(self.directory / "serve.log", "w") as log:
            server = subprocess.Popen([str(part) for part in line], cwd=self.directory, stdout=subprocess.PIPE, stderr=log,
                                      text=True)
        url = re.search(r"http://[\d.:]+", server.stdout.readline())[0]
        try:
            answers = [ask(url, *case) for case in serve_cases(self.adapter(2), self.adapter(4))]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
        (self.directory / "serve.log").unlink()
        write_rows(self.directory / "answers.jsonl", answers)


def serve_cases(old, new):
    def completion(model, **more):
        return "/v1/completions", {"model": model, "prompt": ["12+34=", "7+8="], "max_tokens": 10, "n": 2, "temperature": 0.9,
                                   "seed": 5, "logprobs": 3, "return_token_ids": True, **more}

    def load(name, path, **more):
        return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more}

    return [completion("base"), completion("first"), completion("first", temperature=0, n=1, prompt_logprobs=1),
            load("second", new), completion("second"), load("first", new), load("first", new, load_inplace=True),
            completion("first"), completion("first", adapter_version=2), completion("first", adapter_version=99),
            ("/generate", {"text": "5+6=", "lora_path": "second", "return_logprob": True,
                           "sampling_params": {"max_new_tokens": 8, "temperature": 0}}),
            ("/tokenize", {"model": "base", "prompt": "1+2="}), ("/v1/models", None), load("third", "nowhere"),
            load("third", old, adapter_version=40), completion("third"), ("/v1/unload_lora_adapter", {"lora_name": "second"}),
            completion("second"), ("/v1/models", None)]


def ask(url, route, body):
    request = urllib.request.Request(url + route, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        text = stable(json.loads(text))
    except ValueError:
        pass
    return {"route": route, "status": status, "answer": text}


def stable(json_value):
    """Without what differs from run to run."""
    if isinstance(json_value, dict):
        return {key: stable(value) for key, value in json_value.items() if key not in UNSTABLE_FIELDS and not TIMES.search(key)}
    return [stable(value) for value in json_value] if isinstance(json_value, list) else json_value


def same(a, b):
    if a.name != "metrics.jsonl":
        return filecmp.cmp(a, b, shallow=False)
    lines = [[stable(json.loads(line)) for line in path.open()] for path in (a, b)]
    # A build may log more than another did; what both log must be the same.
    added = {key for old, new in zip(*lines) for key in old.keys() ^ new.keys()}
    if added:
        print(f"  metrics.jsonl: only one build has {', '.join(sorted(added))}")
    common = [[{key: value for key, value in line.items() if key not in added} for line in half] for half in lines]
    return common[0] == common[1]


def files_in(directory):
    return {path.relative_to(directory) for path in directory.rglob("*")
            if path.is_file() and path.relative_to(directory).parts[0] != "model"}


def main():
    parts = ["grpo", "resume", "sft", "dpo", "generate", "score", "eval", "serve"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models" / "arith")
    parser.add_argument("--work", type=pathlib.Path, help="kept; it must not exist")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=parts, help="grpo is always run: others use its adapters")
    options = parser.parse_args()
    work = options.work or pathlib.Path(tempfile.mkdtemp())
    builds = [Build(binary, options.model, work / name, options.device)
              for name, binary in (("old", options.old), ("new", options.new))]
    different = 0
    seen = [files_in(build.directory) for build in builds]
    for part in parts:
        if options.only and part not in ["grpo", *options.only]:
            continue
        for build in builds:
            getattr(build, part)()
        now = [files_in(build.directory) for build in builds]
        files = sorted((now[0] | now[1]) - (seen[0] | seen[1]))
        wrong = [file for file in files
                 if not all(file in made for made in now) or not same(*(build.directory / file for build in builds))]
        seen = now
        different += len(wrong)
        print(f"{part:<9} {len(files)} files, {'the same bytes' if not wrong else 'DIFFERENT: ' + ', '.join(map(str, wrong))}",
              flush=True)
    if not options.work:
        shutil.rmtree(work)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
