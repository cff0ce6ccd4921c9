"""transformers + PEFT on one GPU: LoRA SFT steps of a model of random bf16 weights, tokens per second and peak memory.

    bench/peers/gpu_sft.py --shape bench/shapes/qwen3-0.6b --mode compile --json out.json

Best of the micro-batch sizes given (a size that runs out of memory is recorded as such). Ends in about --seconds.
compile: each decoder layer, and the head with its loss; the layers share one graph, so compiling takes as long for 36 of
them as for two.
"""
import argparse
import gc
import json
import os
import statistics
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # with a pool of processes compiling did not end on an H200 machine
import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--shape", required=True, help="directory with a config.json")
parser.add_argument("--mode", choices=["eager", "compile", "checkpointing"], default="eager")
parser.add_argument("--micro-batch-size", type=int, nargs="+", default=[8, 4, 2], help="sequences at once; the best counts")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq-length", type=int, default=2048)
parser.add_argument("--lora-rank", type=int, default=16)
parser.add_argument("--attention", default="sdpa")
parser.add_argument("--timed-seconds", type=float, default=3,
                    help="steps of each micro-batch size are timed for at least this long; the mean counts, as in lockstep bench")
parser.add_argument("--seconds", type=float, default=85, help="time for everything, loading included")
parser.add_argument("--json", required=True)
options = parser.parse_args()
STARTED = time.perf_counter()
DEVICE = torch.device("cuda")
torch.set_float32_matmul_precision("high")


def seconds_left():
    return options.seconds - (time.perf_counter() - STARTED)


def make_model():
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(options.shape)
    config.use_cache = False
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=options.attention)
    model = peft.get_peft_model(model, peft.LoraConfig(r=options.lora_rank, lora_alpha=2 * options.lora_rank,
                                                       target_modules="all-linear", task_type="CAUSAL_LM"))
    if options.mode == "checkpointing":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.mode != "eager":  # compile: or the first layer's input would need no gradient, and so a graph of its own
        model.enable_input_require_grads()
    return model.to(DEVICE).train()


def progress(text):
    print(f"[{time.perf_counter() - STARTED:6.1f} s] {text}", flush=True)


def loss_of(tokens):
    with torch.autocast("cuda", torch.bfloat16):  # as Trainer with bf16=True: PEFT keeps the adapter in f32
        logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def head_loss(hidden, targets):
    logits = model.get_base_model().lm_head(hidden)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def compiled_loss():
    decoder, head = model.get_base_model().model, torch.compile(head_loss, dynamic=False)
    for layer in decoder.layers:
        layer.compile(dynamic=False)

    def loss(tokens):
        with torch.autocast("cuda", torch.bfloat16):
            return head(decoder(input_ids=tokens[:, :-1]).last_hidden_state, tokens[:, 1:])

    return loss


def measure(forward, micro_batch):
    """Seconds of each timed step and the peak of allocated bytes."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    tokens = torch.randint(0, model.config.vocab_size, (options.batch_size, options.seq_length + 1), device=DEVICE)
    pieces = tokens.split(micro_batch)

    def step():
        for piece in pieces:
            (forward(piece) * (len(piece) / options.batch_size)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    start = time.perf_counter()
    step()  # compiles, if it does
    warm = time.perf_counter() - start
    progress(f"micro-batch {micro_batch}: first step took {warm:.1f} s")
    step()
    torch.cuda.reset_peak_memory_stats()
    times = []
    while len(times) < 2 or (sum(times) < options.timed_seconds and seconds_left() > 0):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times, torch.cuda.max_memory_allocated(), warm


progress("imported")
model = make_model()
progress("model made")
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
result = {"mode": options.mode, "attention": options.attention, "train_tok_s": 0.0, "micro_batches": {}}
result.update(name="gpu_sft", gpu=torch.cuda.get_device_name(), model=os.path.basename(os.path.normpath(options.shape)),
              batch={"batch_size": options.batch_size, "seq_length": options.seq_length, "lora_rank": options.lora_rank},
              versions={"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__})


def record(micro_batch, outcome):
    """Written after every size, so that a time limit leaves what there is."""
    result["micro_batches"][str(micro_batch)] = outcome
    result["seconds"] = time.perf_counter() - STARTED
    with open(options.json, "w") as file:
        json.dump(result, file, indent=2)


attempt_s = 0.0
for micro_batch in options.micro_batch_size:
    if seconds_left() < 1.2 * attempt_s:  # a size takes about as long as the one before, compilation most of it
        record(micro_batch, "no time left")
        continue
    torch._dynamo.reset()
    forward = compiled_loss() if options.mode == "compile" else loss_of
    failure, attempt = None, time.perf_counter()
    try:
        times, peak, warm = measure(forward, micro_batch)
    except torch.cuda.OutOfMemoryError:
        failure = "out of memory"
    attempt_s = time.perf_counter() - attempt
    if failure:  # outside the handler: its traceback holds the tensors
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
        record(micro_batch, failure)
        print(f"micro-batch {micro_batch}: {failure}", flush=True)
        continue
    rate = options.batch_size * options.seq_length / statistics.mean(times)
    if rate > result["train_tok_s"]:
        result.update(train_tok_s=rate, train_peak_bytes=peak, micro_batch_size=micro_batch)
    record(micro_batch, {"train_tok_s": rate, "peak_gib": peak / 2**30, "first_step_s": warm, "steps_s": times})
    print(f"micro-batch {micro_batch}: {rate:.0f} tok/s, {peak / 2**30:.1f} GiB, first step {warm:.1f} s", flush=True)
    torch.cuda.empty_cache()

print(json.dumps({key: result.get(key) for key in ("model", "mode", "train_tok_s", "train_peak_bytes", "micro_batch_size")}))
