"""PyTorch + PEFT: an optimizer step of DoRA beside one of LoRA, in float32 on the CPU, in turn in one process."""
import argparse
import json
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
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--json", required=True)
options = parser.parse_args()

torch.set_num_threads(options.threads)
torch.manual_seed(0)


class Steps:
    def __init__(self, use_dora):
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        self.model = peft.get_peft_model(model, peft.LoraConfig(
            r=options.lora_rank, lora_alpha=2 * options.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM",
            use_dora=use_dora))
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-4)
        self.tokens = torch.randint(0, model.config.vocab_size, (options.batch_size, options.seq_length + 1))

    def step(self):
        start = time.perf_counter()
        logits = self.model(self.tokens[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


lora, dora = Steps(False), Steps(True)
lora.step(), dora.step()
times = [(lora.step(), dora.step()) for _ in range(options.steps)]
lora_s, dora_s = (statistics.median(column) for column in zip(*times))
result = {"lora_step_ms": 1000 * lora_s, "dora_step_ms": 1000 * dora_s, "dora_over_lora": dora_s / lora_s,
          "versions": {"torch": torch.__version__, "peft": peft.__version__}}
with open(options.json, "w") as file:
    json.dump(result, file, indent=2)
print(json.dumps(result))
