"""SmolLM2-135M-Instruct beside transformers in float32 on GSM8K: log-probabilities, a greedy answer, and GRPO steps.

    bench/smollm2_gsm8k.py --lockstep build/release/lockstep --model SMOLLM2 --gsm8k test.jsonl[.xz] [--rows 64]

Needs torch and transformers (tools/interop/setup.sh). Writes one record under bench/records/.
"""
import argparse
import json
import lzma
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

from record import write_record

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--gsm8k", required=True, help="rows {question, answer}")
parser.add_argument("--rows", type=int, default=64)
options = parser.parse_args()
work = pathlib.Path(tempfile.mkdtemp())


def lockstep(*arguments):
    return subprocess.run([options.lockstep, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def read(path):
    text = lzma.open(path, "rt") if path.endswith(".xz") else open(path)
    return [json.loads(line) for line in text]


def write(name, rows):
    path = work / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


rows = read(options.gsm8k)[: options.rows]
tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()

texts = [chat(row["question"]) + row["answer"] for row in rows]
lockstep("score", "--hf-checkpoint", options.model, "--input", write("rows.jsonl", [{"text": text} for text in texts]),
         "--output", work / "scored.jsonl")
differences = []
for text, line in zip(texts, (work / "scored.jsonl").read_text().splitlines()):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    scored = json.loads(line)
    assert scored["tokens"] == ids, text
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    wanted = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
    differences += (torch.tensor(scored["logprobs"][1:], dtype=torch.float64) - wanted).abs().tolist()

prompt = chat("What is the capital of France?")
answer = lockstep("generate", "--hf-checkpoint", options.model, "--prompt", prompt, "--temperature", 0, "--max-tokens", 24)

train = write("train.jsonl", [{"prompt": chat(row["question"]), "label": row["answer"]} for row in rows])
lockstep("train", "--hf-checkpoint", options.model, "--prompt-data", train, "--input-key", "prompt", "--label-key", "label",
         "--rm-type", "number", "--num-rollout", 3, "--rollout-batch-size", 4, "--n-samples-per-prompt", 8,
         "--rollout-max-response-len", 128, "--global-batch-size", 32, "--lora-rank", 16, "--target-modules", "all-linear",
         "--lr", "1e-4", "--use-kl-loss", "--save", work / "run")
steps = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]

bench = work / "bench.json"
lockstep("bench", "--hf-checkpoint", options.model, "--decode-batch", 1, "--new-tokens", 8, "--json", bench)
about = json.loads(bench.read_text())
results = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "tokens": len(differences),
    "logprob_mean_abs_difference": sum(differences) / len(differences),
    "logprob_max_abs_difference": max(differences),
    "greedy": {"prompt": "What is the capital of France?", "answer": answer.strip()},
    "grpo": steps,
}
print(json.dumps(results, indent=2))
print(write_record("smollm2-gsm8k", f"bench/smollm2_gsm8k.py --rows {options.rows}", about["machine"],
                   {"commit": about["commit"], "model": about["model"], "results": results}), file=sys.stderr)
