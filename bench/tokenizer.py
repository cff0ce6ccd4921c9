"""Encode speed of one core beside Hugging Face `tokenizers`, in turns in one run, into a record under bench/records/.

    bench/tokenizer.py --bench build/bench/tokenizer_bench --test-data DIR [--smollm2 DIR] [--rounds 5]

DIR holds tokenizers/*/tokenizer.json.xz and data/gsm8k (LOCKSTEP_TEST_DATA). Texts: GSM8K rows, source files of this
repository, rows of several scripts with emoji and combining marks. Both encode the same list of texts, one text after the
other, without spans and special tokens (the library: encode_batch_fast on one thread); each figure is the fastest round, in
seconds of processor time, so that a neighbour on the machine counts for neither.
"""
import argparse
import json
import lzma
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from record import ROOT, write_record  # noqa: E402

MODELS = ["qwen3", "llama3_1", "gptoss"]


def gsm8k(data):
    rows = map(json.loads, lzma.open(data / "data/gsm8k/train.jsonl.xz", "rt"))
    return [row["question"] + "\n" + row["answer"] for row in rows][:4000]


def code():
    files = sorted(f for pattern in ("src/*/*.cpp", "src/*/*.h", "tests/*/*.cpp", "tools/*/*.py") for f in ROOT.glob(pattern))
    return [f.read_text() for f in files if not f.name.startswith("unicode_")]


def unicode_mix():
    sys.path.insert(0, str(ROOT / "tools/golden"))
    import tokenizer_cases as c
    rng = random.Random(0)
    pieces = c.PROSE + c.UNICODE * 3 + c.EMOJI + c.CONTRACTIONS
    return [" ".join(rng.choice(pieces) for _ in range(20)) for _ in range(3000)]


def fastest(encode, texts):
    start = time.process_time()
    tokens = sum(len(e) for e in encode(texts, add_special_tokens=False))
    return time.process_time() - start, tokens


class Ours:
    def __init__(self, binary, folder):
        self.process = subprocess.Popen([binary, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.load_s = float(self.process.stdout.readline())

    def time(self, file):
        self.process.stdin.write(f"{file} 1\n")
        self.process.stdin.flush()
        seconds, tokens = self.process.stdout.readline().split()
        return float(seconds), int(tokens)


def compare(ours, theirs, texts, rounds, folder):
    file = pathlib.Path(folder) / "texts.json"
    file.write_text(json.dumps(texts))
    size = sum(len(t.encode()) for t in texts)
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        turns = (ours.time(file), fastest(theirs.encode_batch_fast, texts))
        assert turns[0][1] == turns[1][1], "the numbers of tokens differ"
        best = [min(b, t[0]) for b, t in zip(best, turns)]
    speeds = [round(size / 1e6 / b, 2) for b in best]
    return {"bytes": size, "tokens": turns[0][1], "lockstep_mb_s": speeds[0], "tokenizers_mb_s": speeds[1],
            "ratio": round(best[1] / best[0], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--test-data", type=pathlib.Path, required=True)
    parser.add_argument("--smollm2", type=pathlib.Path)
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import tokenizers
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # both on one and the same core
    files = {name: lzma.decompress((options.test_data / "tokenizers" / name / "tokenizer.json.xz").read_bytes()).decode() for name in MODELS}
    if options.smollm2:
        files["smollm2"] = (options.smollm2 / "tokenizer.json").read_text()
    corpora = {"gsm8k": gsm8k(options.test_data), "code": code(), "unicode": unicode_mix()}
    results = {}
    for name, text in files.items():
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_text(text)
            start = time.process_time()
            theirs = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
            their_load_s = time.process_time() - start
            ours = Ours(options.bench, folder)
            results[name] = {c: compare(ours, theirs, texts, options.rounds, folder) for c, texts in corpora.items()}
            results[name]["load_s"] = {"lockstep": round(ours.load_s, 3), "tokenizers": round(their_load_s, 3)}
            ours.process.stdin.close()
            ours.process.wait()
        print(name, json.dumps(results[name]), flush=True)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(write_record("tokenizer", "bench/tokenizer.py " + " ".join(sys.argv[1:]).replace(str(options.test_data), "DIR"),
                       json.loads(options.machine),
                       {"commit": commit, "peer": f"tokenizers {tokenizers.__version__}", "results": results}))


if __name__ == "__main__":
    main()
