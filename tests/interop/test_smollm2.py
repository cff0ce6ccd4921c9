"""A real model: SmolLM2-135M-Instruct beside transformers in float32."""
import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?\nNatalia sold 48/2 = 24 clips in May.\n#### 72",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "The weather in Zürich is 3°C — naïve café. 你好 👩‍👩‍👧 1234567890",
]


def test_tokens_and_logprobs(lockstep, smollm2, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, attn_implementation="eager").eval()
    scored = lockstep.score(smollm2, [{"text": text} for text in TEXTS], tmp_path)
    for text, row in zip(TEXTS, scored):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert row["tokens"] == ids
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        wanted = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
        assert (torch.tensor(row["logprobs"][1:], dtype=torch.float64) - wanted).abs().mean() < 1e-4


def test_greedy_text(lockstep, smollm2):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        wanted = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1]:]
    got = lockstep("generate", "--hf-checkpoint", smollm2, "--prompt", prompt, "--temperature", 0, "--max-tokens", 24)
    assert got.strip() == tokenizer.decode(wanted, skip_special_tokens=True).strip()
    assert "Paris" in got


def test_grpo_steps(lockstep, smollm2, tmp_path):
    rows = [{"prompt": f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n", "label": str(a + b)}
            for a, b in [(3, 4), (12, 9), (17, 25), (8, 8)]]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lockstep("train", "--hf-checkpoint", smollm2, "--prompt-data", data, "--input-key", "prompt", "--label-key", "label",
             "--rm-type", "number", "--num-rollout", 2, "--rollout-batch-size", 2, "--n-samples-per-prompt", 4,
             "--rollout-max-response-len", 24, "--global-batch-size", 8, "--lora-rank", 8, "--target-modules", "all-linear",
             "--lr", "1e-4", "--save", tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["logprob_diff_max"] == 0 for step in steps)
