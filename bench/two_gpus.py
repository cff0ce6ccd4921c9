"""Every record that needs two GPUs of one host: bench/two_gpus.py [--only PART ...] [--rehearse]

    sum           the sum of the gradient of an 8B model's adapter of rank 32 (349 MB), beside NCCL's all-reduce in the same processes
    sft           supervised training with lanes balanced by length, one GPU and two in turn
    grpo          32 prompts x 8 samples, one GPU and two in turn
    weak          64 x 8 on two GPUs beside 32 x 8 on one
    bits          the steps of sft by two and by four ranks, the latter two on a GPU; rollouts sampled ahead by two

All but the first are done for each model of --models, with random weights in its shape. Wherever one GPU and two (or four ranks) do the
same work, adapters, optimizer states and metrics are compared byte for byte, and a difference ends the script. Times are those of
metrics.jsonl but each run's first step; where both do the same steps, a ratio is the median of those of single steps, else that of the
medians. Each part writes its record into bench/records, with what the value has to be at
least (of sum: at most) and what it should be. --rehearse runs all parts on the CPU with two processes over TCP and shapes of seconds, and
writes none.
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

from record import ROOT, write_record

# What a value has to be at least (a time: at most), and what it should be.
GOALS = {"sum_ms": (2.0, 1.2), "sft": (1.90, 1.97), "grpo": (1.35, 1.5), "weak": (1.90, 1.95)}
PARTS = ["sum", "sft", "grpo", "weak", "bits"]
# Of a real measurement and of a rehearsal.
REAL = {"models": ["qwen3-0.6b", "qwen3-4b"], "megabytes": 349, "rounds": 20, "device": "cuda", "repeat": 2, "rank": 32, "rows": 64, "tokens": 2048,
        "steps": 16, "prompts": 32, "samples": 8, "prompt_tokens": 128, "mean_tokens": 256, "rollouts": 5}
REHEARSAL = {"models": ["arith"], "megabytes": 1, "rounds": 3, "device": "cpu", "repeat": 1, "rank": 4, "rows": 8, "tokens": 32, "steps": 3,
             "prompts": 4, "samples": 2, "prompt_tokens": 16, "mean_tokens": 8, "rollouts": 3}
FILES = ["lora_adapter/adapter_model.safetensors", "train_state.safetensors"]


def write_base(folder, shape):
    """A model directory of random weights: config.json and a tokenizer of as many tokens, whose text is nowhere else."""
    config_file = ROOT / ("models/arith" if shape == "arith" else f"bench/shapes/{shape}") / "config.json"
    config = json.loads(config_file.read_text())
    tokenizer = json.loads((ROOT / "models/arith/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for number in range(len(vocabulary), config["vocab_size"]):
        vocabulary[f"<{number}>"] = number
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return config["vocab_size"]


def write_inputs(folder, what, vocabulary):
    """Rows whose lengths spread as those of real data do, a fifth of the longest at least, and prompts of one length."""
    draw = random.Random(1)
    with open(folder / "rows.jsonl", "w") as out:
        for _ in range(what["rows"] * what["steps"]):
            length = max(what["tokens"] // 5, min(what["tokens"], round(draw.lognormvariate(0, 0.6) * what["tokens"] / 3)))
            row = [draw.randrange(vocabulary) for _ in range(length)]
            out.write(json.dumps({"tokens": row, "loss_mask": [0] + [1] * (length - 1)}) + "\n")
    with open(folder / "prompts.jsonl", "w") as out:
        for _ in range(2 * what["prompts"] * what["rollouts"]):
            out.write(json.dumps({"prompt": "".join(draw.choice("abcdefghij") for _ in range(what["prompt_tokens"]))}) + "\n")


class Bench:
    def __init__(self, options, what, folder):
        self.options, self.what, self.folder = options, what, folder
        self.rehearsal = options.rehearse
        self.count = 0
        self.machine, self.commit = self.facts()

    def facts(self):
        """What the program says of the machine and of itself."""
        file = self.folder / "facts.json"
        self.call([self.options.lockstep, "bench", "--hf-checkpoint", ROOT / "models/arith", "--device", self.what["device"], "--only", "publish",
                   "--json", file])
        record = json.loads(file.read_text())
        return {**record["machine"], **({} if self.rehearsal else {"gpus": 2})}, record["commit"]

    def call(self, command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def write(self, name, results):
        print(json.dumps({name: results}), flush=True)
        if self.rehearsal:
            return
        command = f"bench/two_gpus.py --only {name.split('-')[0]}"
        print(write_record(f"two-gpus-{name}", command, self.machine, {"commit": self.commit, "results": results}), flush=True)

    def train(self, words, ranks=1, on_a_gpu=1):
        """Runs a training command; its lines of metrics.jsonl and its directory."""
        self.count += 1
        save = self.folder / f"save{self.count}"
        layout = ["--actor-num-gpus-per-node", ranks // on_a_gpu] if ranks > 1 else []
        layout += ["--ranks-per-gpu", on_a_gpu] if on_a_gpu > 1 else []
        threads = ["--threads", 1] if self.rehearsal else []
        self.call([self.options.lockstep, *words, "--device", self.what["device"], *threads, *layout, "--save", save])
        return [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()], save

    def adapted(self, folder):
        return ["--hf-checkpoint", folder, "--load-format", "dummy", "--lora-rank", self.what["rank"], "--target-modules", "all-linear", "--lr", "1e-5",
                "--balance-data"]

    def sft(self, base):
        return ["sft", *self.adapted(base), "--prompt-data", base / "rows.jsonl", "--global-batch-size", self.what["rows"], "--train-iters",
                self.what["steps"]]

    def grpo(self, base, vocabulary, times=1):
        """Samples end at one token in `mean_tokens`, which a model of random weights draws about as often, or at four times that many."""
        stop = range(1, vocabulary, self.what["mean_tokens"])
        return ["train", *self.adapted(base), "--prompt-data", base / "prompts.jsonl", "--input-key", "prompt", "--rm-type", "deterministic_random",
                "--num-rollout", self.what["rollouts"], "--rollout-batch-size", times * self.what["prompts"], "--n-samples-per-prompt",
                self.what["samples"], "--rollout-max-response-len", 4 * self.what["mean_tokens"], "--rollout-stop-token-ids", *stop]


def contents(save):
    """What has to be the same bytes, and what metrics.jsonl says but for times, memory and how evenly ranks share the work."""
    last = max(save.glob("iter_*"))
    lines = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    shared = [{key: line[key] for key in line if not key.endswith(("_ms", "_per_s", "_bytes", "rank_imbalance"))} for line in lines]
    return [(last / name).read_bytes() for name in FILES], shared


def require_same(name, a, b):
    for i, (one, other) in enumerate(zip(contents(a)[0], contents(b)[0])):
        if one != other:
            raise SystemExit(f"{name}: {FILES[i]} is not the same bytes")
    if contents(a)[1] != contents(b)[1]:
        raise SystemExit(f"{name}: metrics.jsonl is not the same")


def seconds(lines, keys):
    """Of each step but the first."""
    return [round(sum(line[key] for key in keys) / 1000, 5) for line in lines[1:]]


def in_turn(bench, name, alone, two, keys, same=True):
    times, stages = {"one": [], "two": []}, {"one": [], "two": []}
    for _ in range(bench.what["repeat"]):
        first, one = bench.train(alone)
        second, other = bench.train(two, ranks=2)
        times["one"] += seconds(first, keys)
        times["two"] += seconds(second, keys)
        stages["one"] += first[1:]
        stages["two"] += second[1:]
        if same:
            require_same(name, one, other)
        shutil.rmtree(one)
        shutil.rmtree(other)
    medians = {key: statistics.median(values) for key, values in times.items()}
    ratio = statistics.median(one / two for one, two in zip(times["one"], times["two"])) if same else medians["one"] / medians["two"]
    return {"seconds": {key: round(value, 4) for key, value in medians.items()}, "steps": times, "ratio": round(ratio, 4),
            "median_ms": {name: {key: round(statistics.median(line[key] for line in lines), 1) for key in keys} for name, lines in stages.items()},
            **({"same_bytes": True} if same else {})}


def with_goal(results, name, value):
    floor, goal = GOALS[name]
    return {**results, "value": value, "floor": floor, "goal": goal}


def run_sum(bench):
    words = [bench.options.ranks_bench, "--megabytes", bench.what["megabytes"], "--rounds", bench.what["rounds"]]
    result = json.loads(bench.call([*words, *([] if bench.rehearsal else ["--cuda"])]))
    ours, raw = statistics.median(result["sum_ms"]), statistics.median(result["raw_ms"])
    bench.write("sum", with_goal({**result, "median_ms": {"ours": round(ours, 3), "raw": round(raw, 3)}}, "sum_ms", round(ours, 3)))


def run_model(bench, shape, parts):
    base = bench.folder / shape
    vocabulary = write_base(base, shape)
    write_inputs(base, bench.what, vocabulary)
    rollout = ("rollout_ms", "reward_ms", "train_ms", "publish_ms")
    if "sft" in parts:
        result = in_turn(bench, "sft", bench.sft(base), bench.sft(base), ["train_ms"])
        bench.write(f"sft-{shape}", with_goal(result, "sft", result["ratio"]))
    if "grpo" in parts:
        command = bench.grpo(base, vocabulary)
        result = in_turn(bench, "grpo", command, command, rollout)
        bench.write(f"grpo-{shape}", with_goal(result, "grpo", result["ratio"]))
    if "weak" in parts:
        result = in_turn(bench, "weak", bench.grpo(base, vocabulary), bench.grpo(base, vocabulary, 2), rollout, same=False)
        bench.write(f"weak-{shape}", with_goal(result, "weak", round(2 * result["ratio"], 4)))
    if "bits" in parts:
        ahead = [*bench.grpo(base, vocabulary), "--max-staleness", 1]
        for command, layouts in ((bench.sft(base), ((2, 1), (4, 2))), (ahead, ((2, 1),))):
            _, one = bench.train(command)
            for ranks, on_a_gpu in layouts:
                _, other = bench.train(command, ranks, on_a_gpu)
                require_same(f"{command[0]} by {ranks} ranks", one, other)
        bench.write(f"bits-{shape}", {"same_bytes": True, "sft": {"ranks": [1, 2, 4], "ranks_per_gpu": [1, 1, 2]}, "ahead": {"ranks": [1, 2]}})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", type=pathlib.Path, default=ROOT / "build/release/lockstep")
    parser.add_argument("--ranks-bench", type=pathlib.Path, default=ROOT / "build/release/ranks_bench", help="built with the tests")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", help="folders of bench/shapes (qwen3-0.6b qwen3-4b)")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with small shapes; no record is written")
    parser.add_argument("--repeat", type=int, help="rounds of one GPU and two in turn (2)")
    options = parser.parse_args()
    options.lockstep, options.ranks_bench = options.lockstep.resolve(), options.ranks_bench.resolve()  # parts run elsewhere
    what = dict(REHEARSAL if options.rehearse else REAL)
    what["models"] = options.models or what["models"]
    what["repeat"] = options.repeat or what["repeat"]
    if not options.rehearse:
        gpus = int(subprocess.run([options.ranks_bench, "--count-gpus"], check=True, capture_output=True, text=True).stdout)
        if gpus < 2:
            raise SystemExit(f"two GPUs of one host are needed, and there are {gpus}; --rehearse runs every part on the CPU")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, what, pathlib.Path(folder))
        if "sum" in options.only:
            run_sum(bench)
        for shape in what["models"]:
            run_model(bench, shape, options.only)


if __name__ == "__main__":
    sys.exit(main())
