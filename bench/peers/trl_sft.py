#!/usr/bin/env python3
"""lockstep sft beside TRL's SFTTrainer: the same adapter to start from, the same rows in the same order, float32.

    bench/peers/trl_sft.py --lockstep build/release/lockstep --model SMOLLM2 --gsm8k train.jsonl[.xz] \\
        [--steps 30] [--batch 4] [--short] [--figure docs/images/sft-smollm2-gsm8k.png] [--record NAME]

Rows are conversations of one question and one answer; targets are the assistant's turns. TRL runs twice, with two of
PyTorch's attention kernels (sdpa, eager): the difference of two runs that mean the same. --short takes the shortest rows.
Needs torch, transformers, peft, trl, datasets, matplotlib.
"""
import argparse
import json
import lzma
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

TEMPLATE = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{{ '\\n' }}{% else %}{{ message['content'] }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LR, ALPHA, RANK = 2e-4, 32, 16


def read(path, count, short):
    text = lzma.open(path, "rt") if path.endswith(".xz") else open(path)
    rows = [json.loads(line) for line in text]
    if short:
        rows.sort(key=lambda row: len(row["question"]) + len(row["answer"]))
    return [{"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]}
            for row in rows[:count]]


def first_adapter(model_path, folder):
    import peft
    import torch
    import transformers
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(model, config).save_pretrained(folder, save_embedding_layers=False)


def trl_run(options, rows, work, kernel):
    import datasets
    import peft
    import torch
    import transformers
    import trl
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.chat_template = TEMPLATE
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation=kernel)
    model = peft.PeftModel.from_pretrained(model, work / "start", is_trainable=True)

    class InOrder(trl.SFTTrainer):
        def _get_train_sampler(self, *_, **__):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    losses = []

    class Keep(transformers.TrainerCallback):
        def on_log(self, arguments, state, control, logs=None, **_):
            if "loss" in logs:
                losses.append(logs["loss"])

    arguments = trl.SFTConfig(
        output_dir=str(work / kernel), max_steps=options.steps, per_device_train_batch_size=options.batch, learning_rate=LR,
        lr_scheduler_type="constant", weight_decay=0.01, adam_beta2=0.999, max_grad_norm=1.0, logging_steps=1, bf16=False,
        fp16=False, use_cpu=True, gradient_checkpointing=False, assistant_only_loss=True, max_length=None, report_to=[],
        save_strategy="no", disable_tqdm=True, optim="adamw_torch", logging_nan_inf_filter=False)
    trainer = InOrder(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
                      callbacks=[Keep()])
    start = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - start
    adapter = {k.replace(".default.", "."): p.detach().clone() for k, p in trainer.model.named_parameters() if p.requires_grad}
    return losses, adapter, seconds


def lockstep_run(options, rows, work):
    from safetensors.torch import load_file
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "template.jinja").write_text(TEMPLATE)
    start = time.monotonic()
    subprocess.run([options.lockstep, "sft", "--hf-checkpoint", options.model, "--prompt-data", work / "rows.jsonl",
                    "--chat-template", work / "template.jinja", "--lora-adapter-path", work / "start", "--lr", str(LR),
                    "--global-batch-size", str(options.batch), "--num-rollout", str(options.steps),
                    "--threads", str(options.threads), "--calculate-per-token-loss", "--save", work / "run"], check=True, stdout=sys.stderr)
    seconds = time.monotonic() - start
    lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    adapter = load_file(work / "run" / f"iter_{options.steps:07d}" / "lora_adapter" / "adapter_model.safetensors")
    return [line["loss"] for line in lines], adapter, seconds


def apart(a, b):
    """Largest difference of a loss, and of a tensor (Frobenius, relative)."""
    (loss_a, adapter_a, _), (loss_b, adapter_b, _) = a, b
    assert len(loss_a) == len(loss_b) and set(adapter_a) == set(adapter_b)
    return {"loss": max(abs(x - y) for x, y in zip(loss_a, loss_b)),
            "adapter": max(((adapter_a[k] - v).norm() / v.norm()).item() for k, v in adapter_b.items())}


def draw(path, runs, title):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5), dpi=120, sharex=True, height_ratios=(3, 1.2))
    steps = range(1, len(runs["lockstep"][0]) + 1)
    top.plot(steps, runs["sdpa"][0], color="tab:orange", linewidth=4, alpha=0.5, label="TRL SFTTrainer (sdpa)")
    top.plot(steps, runs["lockstep"][0], color="tab:blue", linewidth=1.2, label="lockstep sft")
    top.set_ylabel("training loss")
    top.set_title(title, fontsize=9)
    for name, label in (("lockstep", "lockstep - TRL (sdpa)"), ("eager", "TRL (eager) - TRL (sdpa)")):
        bottom.plot(steps, [max(abs(a - b), 1e-9) for a, b in zip(runs[name][0], runs["sdpa"][0])], label=label,
                    color="tab:blue" if name == "lockstep" else "tab:gray", linewidth=1)
    bottom.set_yscale("log")
    bottom.set_ylabel("|difference|")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gsm8k", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="of both programs (all cores)")
    parser.add_argument("--figure")
    parser.add_argument("--record")
    options = parser.parse_args()
    import peft
    import torch
    import transformers
    import trl
    if options.threads:
        torch.set_num_threads(options.threads)
    work = pathlib.Path(tempfile.mkdtemp())
    rows = read(options.gsm8k, options.steps * options.batch, options.short)
    first_adapter(options.model, work / "start")
    runs = {"lockstep": lockstep_run(options, rows, work)}
    for kernel in ("sdpa", "eager"):
        runs[kernel] = trl_run(options, rows, work, kernel)
    results = {
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft, trl)},
        "steps": options.steps, "batch": options.batch,
        "lockstep against TRL (sdpa)": apart(runs["lockstep"], runs["sdpa"]),
        "TRL (eager) against TRL (sdpa)": apart(runs["eager"], runs["sdpa"]),
        "seconds": {name: round(run[2], 1) for name, run in runs.items()},
        "loss": {name: run[0] for name, run in runs.items()},
    }
    print(json.dumps(results, indent=2))
    if options.figure:
        draw(options.figure, runs, f"SmolLM2-135M on GSM8K, LoRA rank {RANK}, {options.batch} conversations a step, float32")
    if options.record:
        from record import write_record
        subprocess.run([options.lockstep, "bench", "--hf-checkpoint", options.model, "--decode-batch", "1",
                        "--new-tokens", "8", "--json", work / "bench.json"], check=True, stdout=sys.stderr)
        about = json.loads((work / "bench.json").read_text())
        command = (f"bench/peers/trl_sft.py --steps {options.steps} --batch {options.batch}" + (" --short" if options.short else "")
                   + (f" --threads {options.threads}" if options.threads else ""))
        print(write_record(options.record, command, about["machine"],
                           {"commit": about["commit"], "model": about["model"], "results": results}), file=sys.stderr)


if __name__ == "__main__":
    main()
