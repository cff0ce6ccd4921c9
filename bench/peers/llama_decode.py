"""llama.cpp on the CPU: throughput of prompts and answers decoded together, with and without a LoRA adapter.

    bench/peers/llama_decode.py --gguf MODEL.gguf --json out.json

llama-cpp-python's own server answers one request after another, so this drives llama.cpp's batch API in-process, as its
llama-server does: each step takes prompts that wait, then one token of each running sequence; no HTTP. Sequences are
started together; time is of all, prompts included. The adapter is of random numbers, made here.
"""
import argparse
import ctypes
import json
import os
import random
import tempfile
import time

import gguf
import llama_cpp
import numpy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--gguf", required=True)
parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
parser.add_argument("--prompt-tokens", type=int, default=128)
parser.add_argument("--new-tokens", type=int, default=128)
parser.add_argument("--lora-rank", type=int, default=16)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--json", required=True)
options = parser.parse_args()
BATCH = 2048


def write_adapter(path):
    """A LoRA of every linear layer in llama.cpp's own format."""
    numbers = numpy.random.RandomState(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2 * options.lora_rank)
    for tensor in gguf.GGUFReader(options.gguf).tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            wide, tall = (int(size) for size in tensor.shape)
            for name, shape, scale in (("lora_a", (options.lora_rank, wide), wide**-0.5), ("lora_b", (tall, options.lora_rank), 0.02)):
                writer.add_tensor(f"{tensor.name}.{name}", (scale * numbers.standard_normal(shape)).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Batch:
    def __init__(self):
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(self, context, rows):
        """rows: (token, position, sequence, wanted); which rows have logits."""
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wanted
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
        self.batch.n_tokens = len(rows)
        if llama_cpp.llama_decode(context, self.batch) != 0:
            raise SystemExit("llama_decode failed")


def throughput(model, vocabulary, concurrency, adapter):
    parameters = llama_cpp.llama_context_default_params()
    length = options.prompt_tokens + options.new_tokens
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = concurrency * length, BATCH, 512
    parameters.n_seq_max, parameters.kv_unified = concurrency, True
    parameters.n_threads = parameters.n_threads_batch = options.threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    if adapter:
        adapters, scales = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(1.0)
        if llama_cpp.llama_set_adapters_lora(context, adapters, 1, scales) != 0:
            raise SystemExit("the adapter was not accepted")
    sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_temp(1.0))
    llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_dist(1))
    numbers, batch = random.Random(concurrency), Batch()
    prompts = [[numbers.randrange(100, vocabulary) for _ in range(options.prompt_tokens)] for _ in range(concurrency)]
    last, start = [0] * concurrency, time.perf_counter()
    together = BATCH // options.prompt_tokens
    for first in range(0, concurrency, together):
        rows = [(token, position, sequence, position == options.prompt_tokens - 1)
                for sequence in range(first, min(first + together, concurrency)) for position, token in enumerate(prompts[sequence])]
        batch.decode(context, rows)
        for i, (*_, sequence, wanted) in enumerate(rows):
            if wanted:
                last[sequence] = llama_cpp.llama_sampler_sample(sampler, context, i)
    for step in range(1, options.new_tokens):
        position = options.prompt_tokens + step - 1
        batch.decode(context, [(last[sequence], position, sequence, True) for sequence in range(concurrency)])
        last = [llama_cpp.llama_sampler_sample(sampler, context, i) for i in range(concurrency)]
    seconds = time.perf_counter() - start
    llama_cpp.llama_sampler_free(sampler)
    llama_cpp.llama_free(context)
    return concurrency * options.new_tokens / seconds


silent = llama_cpp.llama_log_callback(lambda *_: None)  # kept: llama.cpp calls it to the end
llama_cpp.llama_log_set(silent, None)
llama_cpp.llama_backend_init()
model = llama_cpp.llama_model_load_from_file(options.gguf.encode(), llama_cpp.llama_model_default_params())
vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
result = {"version": llama_cpp.__version__, "file": os.path.basename(options.gguf), "decode_tok_s": {}, "decode_lora_tok_s": {}}
with tempfile.TemporaryDirectory() as folder:
    write_adapter(folder + "/adapter.gguf")
    adapter = llama_cpp.llama_adapter_lora_init(model, (folder + "/adapter.gguf").encode())
    if not adapter:
        raise SystemExit("the adapter was not read")
    for name, used in (("decode_tok_s", None), ("decode_lora_tok_s", adapter)):
        for concurrency in options.concurrency:
            result[name][str(concurrency)] = throughput(model, vocabulary, concurrency, used)
            print(name, concurrency, result[name][str(concurrency)], flush=True)
with open(options.json, "w") as file:
    json.dump(result, file, indent=2)
