"""TRL's own clients, unmodified, in a small PEFT loop against `lockstep serve`: its log-probabilities beside ours.

What runs is TRL >= 1.16: the synchronous VLLMClient, the one of its asynchronous trainer, and select_adapter_sync.
"""
import types

import pytest
import torch
from peft import LoraConfig, get_peft_model
from server_client import MODEL, Server, free_port, lockstep_command
from transformers import AutoModelForCausalLM, AutoTokenizer

trl = pytest.importorskip("trl", minversion="1.16")
accelerate = pytest.importorskip("accelerate")
pytest.importorskip("vllm", reason="TRL's client wants vLLM to be importable")
accelerate.PartialState()  # its loggers want one

from trl.experimental.async_grpo.async_grpo_trainer import select_adapter_sync  # noqa: E402
from trl.experimental.async_grpo.vllm_client import VLLMClient as AsyncClient  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402

TEXT = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
PROMPTS = ["The capital of France is", "def fibonacci(n):"]
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def address(request, smollm2, tmp_path_factory):
    port = free_port()
    command, environment = lockstep_command(request.config.getoption("--lockstep"), smollm2, port,
                                            ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"])
    at = command.index("--api-key")
    del command[at:at + 2]  # TRL sends none
    server = Server(command, environment, port, tmp_path_factory.mktemp("trl") / "log")
    try:
        server.wait_ready()
        yield f"http://127.0.0.1:{port}"
    finally:
        assert server.stop() == 0, server.tail()


def logprobs(model, prompt, completion):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1].double() / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def test_three_versions_of_a_peft_adapter(address, smollm2, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(0)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    client, control = VLLMClient(base_url=address), AsyncClient(address)
    control.wait_for_server_ready()
    info = control.get_server_info()
    assert client.get_server_info() == info and client.model == MODEL
    assert select_adapter_sync(info, model, types.SimpleNamespace(max_staleness=1))
    assert info["model_config"]["logprobs_mode"] == "processed_logprobs" and control.get_dtype().startswith("torch.")
    assert control.get_world_size() == client.get_world_size() == 1 and control.get_max_model_len() == 512
    ids, seen = torch.tensor([tokenizer(TEXT)["input_ids"]]), []
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    for version in range(3):
        model.train()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval().save_pretrained(tmp_path / f"v{version}")
        control.pause()
        control.load_lora_adapter(f"policy-v{version}", str(tmp_path / f"v{version}"))
        control.resume()
        client.reset_prefix_cache()
        client.model = f"policy-v{version}"
        made = client.generate(prompts, n=2, temperature=TEMPERATURE, max_tokens=12, generation_kwargs={"seed": version})
        assert made["prompt_ids"] == prompts
        for i, completion in enumerate(made["completion_ids"]):
            prompt = prompts[i // 2]
            ours = torch.tensor([token[0] for token in made["logprobs"][i]], dtype=torch.float64)
            difference = (ours - logprobs(model, prompt, completion)).abs().max()
            assert difference < 2e-3, f"version {version}: {difference}"
            seen.append((tuple(prompt + completion), ours))
        if version > 0:
            control.unload_lora_adapter(f"policy-v{version - 1}")
    # The versions differ by more than the two systems do: the first one's tokens are less likely under the last.
    tokens, first = seen[0]
    last = logprobs(model, list(tokens[:len(prompts[0])]), list(tokens[len(prompts[0]):]))
    assert (first - last).abs().max() > 0.02
    scored = client.get_sequence_logprobs([list(tokens)], [len(prompts[0])], top_logprobs=3, temperature=TEMPERATURE)
    assert len(scored["logprobs"][0]) == len(tokens) - len(prompts[0]) and len(scored["logprobs"][0][0]) == 3


def test_what_trl_before_1_16_asks_for(address):
    requests = pytest.importorskip("requests")
    for path in ("/init_communicator/", "/update_named_param/", "/generate/"):
        answer = requests.post(address + path, json={})
        assert answer.status_code == 404 and "1.16" in answer.text
    with pytest.raises(RuntimeError, match="weight-transfer"):  # not a hang, not a 500 retried
        VLLMClient(base_url=address).init_communicator(device="cpu")
