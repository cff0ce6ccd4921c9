"""`lockstep export` beside llama.cpp itself: both GGUF forms, every type and architecture, token by token.

llama.cpp answers prompts of token ids greedily and says the log-probability of what it takes; `lockstep generate` does the same from the
files that were exported.
"""
import json
import shutil
import urllib.request

import pytest
import torch
import transformers
from conftest import ROOT
from peft import LoraConfig, get_peft_model

llama_cpp = pytest.importorskip("xllamacpp", reason="no llama.cpp: tools/interop/setup.sh VENV llama")

ARITH = ROOT / "models" / "arith"
TOKENS = 16
# llama.cpp rounds activations, too, where matrices are 16 or 8 bits wide.
CLOSE = {"f32": 1e-3, "f16": 0.01, "bf16": 0.1, "q8_0": 0.2}


def numbers_for_all_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.1 * noise if "norm" in name else 0.15 * noise)
    return model


def tiny(kind, folder):
    """A model of random weights with the tokenizer of models/arith."""
    shape = dict(vocab_size=288, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0)
    stretched = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                     original_max_position_embeddings=64)
    config = {
        "llama": lambda: transformers.LlamaConfig(**shape, tie_word_embeddings=False),
        "llama3": lambda: transformers.LlamaConfig(**shape, tie_word_embeddings=True, rope_parameters=stretched),
        "llama_bias": lambda: transformers.LlamaConfig(**shape, attention_bias=True, mlp_bias=True),
        "mistral": lambda: transformers.MistralConfig(**shape, sliding_window=None),
        "qwen2": lambda: transformers.Qwen2Config(**shape),
        "qwen3": lambda: transformers.Qwen3Config(**shape, head_dim=64, tie_word_embeddings=False),
    }[kind]()
    model = numbers_for_all_weights(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32), 1)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ARITH / name, folder / name)
    return folder


def adapter_of(model_path, folder, size, **settings):
    """A PEFT adapter of random numbers; factors `size` times as large as those of a fresh A, what begins as the base's moved."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    config = LoraConfig(**{"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings})
    adapted = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                weight.copy_(size * weight.shape[1] ** -0.5 * torch.randn(weight.shape, generator=generator))
            elif weight.requires_grad:
                weight.mul_(1 + 0.3 * torch.rand(weight.shape, generator=generator))
    adapted.save_pretrained(folder)
    return folder


def ours(lockstep, model, prompts, folder, adapter=None):
    """(tokens, log-probabilities) of each prompt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    lockstep("generate", "--hf-checkpoint", model, *(["--lora-adapter-path", adapter] if adapter else []), "--input",
             folder / "prompts.jsonl", "--output", folder / "answers.jsonl", "--overwrite", "--temperature", 0, "--max-tokens", TOKENS)
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return [(row["tokens"], row["logprobs"]) for row in rows]


class Answer:
    """Of llama.cpp: all tokens, and log-probabilities of those that end a character."""

    def __init__(self, answer):
        self.tokens = answer["tokens"]
        self.logprobs = [(entry["id"], entry["logprob"]) for entry in answer["completion_probabilities"]]


def theirs(model, prompts, adapter=None):
    parameters = llama_cpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup, parameters.verbosity = 512, 1, False, -1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    # Attention in f32, as ours.
    parameters.cache_type_k = parameters.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if adapter:
        parameters.lora_adapters = [llama_cpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
    server = llama_cpp.Server(parameters)

    def answer(prompt):
        body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "n_probs": 1, "return_tokens": True, "cache_prompt": False}
        request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return Answer(json.load(reply))
    return [answer(prompt) for prompt in prompts]


def compare(got, wanted, tolerance):
    """The same tokens (the end token is or is not among them), and log-probabilities within the tolerance, in order."""
    for (tokens, logprobs), answer in zip(got, wanted, strict=True):
        common = min(len(tokens), len(answer.tokens))
        assert common > 0 and abs(len(tokens) - len(answer.tokens)) <= 1
        assert tokens[:common] == answer.tokens[:common]
        place = 0
        for number, (token, logprob) in enumerate(answer.logprobs):
            near = [i for i in range(place, common) if tokens[i] == token and abs(logprobs[i] - logprob) < tolerance]
            is_end = number == len(answer.logprobs) - 1 and len(answer.tokens) > len(tokens)
            assert near or is_end, (token, logprob, list(zip(tokens, logprobs))[place:])
            place = near[0] + 1 if near else common
        assert answer.logprobs


def export(lockstep, form, model, output, adapter=None, dtype="f32"):
    lockstep("export", "--format", form, "--hf-checkpoint", model, *(["--lora-adapter-path", adapter] if adapter else []),
             "--output", output, "--dtype", dtype)
    return output


QUESTIONS = ["Q: 3 + 4 = ?", "17 + 25", "What is 8 x 7?", "1234567890 apples", "  spaces\n\nand lines\t", "Zürich 你好 👩‍👧"]


@pytest.mark.parametrize("kind", ["llama", "llama3", "llama_bias", "mistral", "qwen2", "qwen3"])
def test_architectures(lockstep, tmp_path, kind):
    model = tiny(kind, tmp_path / kind)
    adapter = adapter_of(model, tmp_path / "adapter", 1.0)
    base = export(lockstep, "gguf", model, tmp_path / "base.gguf")
    compare(ours(lockstep, model, QUESTIONS, tmp_path), theirs(base, QUESTIONS), CLOSE["f32"])
    wanted = ours(lockstep, model, QUESTIONS, tmp_path, adapter)
    assert wanted != ours(lockstep, model, QUESTIONS, tmp_path)
    lora = export(lockstep, "gguf-lora", model, tmp_path / "lora.gguf", adapter)
    compare(wanted, theirs(base, QUESTIONS, lora), CLOSE["f32"])
    compare(wanted, theirs(export(lockstep, "gguf", model, tmp_path / "merged.gguf", adapter), QUESTIONS), CLOSE["f32"])


@pytest.mark.parametrize("kind, settings", [
    ("llama", {"use_dora": True}),
    ("qwen3", {"use_dora": True, "target_modules": ["q_proj", "k_proj", "down_proj", "lm_head"]}),
    ("qwen2", {"bias": "all"}),
    ("llama", {"modules_to_save": ["lm_head", "embed_tokens"]}),
    ("mistral", {"target_modules": ["k_proj", "embed_tokens"]}),
], ids=["dora", "dora-head", "biases", "saved", "embedding"])
def test_every_kind_of_lora_merged(lockstep, tmp_path, kind, settings):
    model = tiny(kind, tmp_path / kind)
    adapter = adapter_of(model, tmp_path / "adapter", 0.5, **settings)
    wanted = ours(lockstep, model, QUESTIONS, tmp_path, adapter)
    assert wanted != ours(lockstep, model, QUESTIONS, tmp_path)
    compare(wanted, theirs(export(lockstep, "gguf", model, tmp_path / "merged.gguf", adapter), QUESTIONS), CLOSE["f32"])


def test_scales_of_modules(lockstep, tmp_path):
    model = tiny("llama", tmp_path / "llama")
    adapter = adapter_of(model, tmp_path / "adapter", 0.5, use_rslora=True, rank_pattern={"q_proj": 4}, alpha_pattern={"up_proj": 3})
    base = export(lockstep, "gguf", model, tmp_path / "base.gguf")
    lora = export(lockstep, "gguf-lora", model, tmp_path / "lora.gguf", adapter)
    compare(ours(lockstep, model, QUESTIONS, tmp_path, adapter), theirs(base, QUESTIONS, lora), CLOSE["f32"])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_types(lockstep, tmp_path, dtype):
    """A trained model, whose answers do not hang on the last bit."""
    adapter = adapter_of(ARITH, tmp_path / "adapter", 0.02)
    questions = [json.loads(line)["prompt"] for line in (ARITH / "test.jsonl").read_text().splitlines()[:8]]
    wanted = ours(lockstep, ARITH, questions, tmp_path, adapter)
    merged = export(lockstep, "gguf", ARITH, tmp_path / "merged.gguf", adapter, dtype)
    compare(wanted, theirs(merged, questions), CLOSE[dtype])
    base = export(lockstep, "gguf", ARITH, tmp_path / "base.gguf", None, dtype)
    lora = export(lockstep, "gguf-lora", ARITH, tmp_path / "lora.gguf", adapter, dtype)
    compare(wanted, theirs(base, questions, lora), CLOSE[dtype])


def test_smollm2(lockstep, smollm2, tmp_path):
    prompts = ["<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
               "Once upon a time, there was a naïve café in Zürich, and 1234"]
    adapter = adapter_of(smollm2, tmp_path / "adapter", 0.3)
    wanted = ours(lockstep, smollm2, prompts, tmp_path, adapter)
    assert wanted != ours(lockstep, smollm2, prompts, tmp_path)
    merged = export(lockstep, "gguf", smollm2, tmp_path / "merged.gguf", adapter)
    compare(wanted, theirs(merged, prompts), 5e-3)
    base = export(lockstep, "gguf", smollm2, tmp_path / "base.gguf")
    lora = export(lockstep, "gguf-lora", smollm2, tmp_path / "lora.gguf", adapter)
    compare(wanted, theirs(base, prompts, lora), 5e-3)
