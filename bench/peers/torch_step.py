"""PyTorch + PEFT: one LoRA optimizer step in float32 on the CPU, tokens per second and peak resident memory."""
import argparse
import json
import resource
import statistics
import time

import peft
import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--seq-length", type=int, default=256)
parser.add_argument("--lora-rank", type=int, default=16)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--json", required=True)
options = parser.parse_args()

torch.set_num_threads(options.threads)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
model = peft.get_peft_model(model, peft.LoraConfig(r=options.lora_rank, lora_alpha=2 * options.lora_rank,
                                                   target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
tokens = torch.randint(0, model.config.vocab_size, (options.batch_size, options.seq_length + 1))


def step():
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


step()
times = []
for _ in range(options.steps):
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
result = {
    "train_tok_s": options.batch_size * options.seq_length / statistics.median(times),
    "train_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "versions": {"torch": torch.__version__, "peft": peft.__version__},
}
with open(options.json, "w") as file:
    json.dump(result, file, indent=2)
print(json.dumps(result))
