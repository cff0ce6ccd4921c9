"""Masks of the assistant's turns: those of transformers' apply_chat_template(return_assistant_tokens_mask=True)."""
import json
import lzma
import pathlib
import random

import pytest
import transformers
from conftest import rows_program

TRL = ["qwen2_5_training", "qwen3_training", "llama3_training", "gemma_training", "phi3_training", "deepseekv3_training",
       "cohere_training", "qwen3_instruct_2507_training"]
PIECES = ["Hello", " world", "\n", "\n\n", "  ", "naïve café", "你好", "👩‍👩‍👧", "def f(x):\n    return x", "1234567", " ", "<b>", "é́",
          "<|im_end|>", "ﬁ", "\t", "...", "'s"]


def conversation(numbers, turns):
    def text():
        return "".join(numbers.choice(PIECES) for _ in range(numbers.randrange(1, 9)))
    messages = [{"role": "system", "content": text()}] if numbers.random() < 0.3 else []
    for _ in range(turns):
        messages += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    return messages


@pytest.fixture(scope="session")
def mask_rows(lockstep):
    return rows_program(lockstep, "mask_rows")


@pytest.fixture(scope="session")
def tokenizers(request, smollm2, tmp_path_factory):
    """name -> directory: SmolLM2's, and those of --test-data, which are packed."""
    folders = {"smollm2": smollm2}
    data = request.config.getoption("--test-data", default=None)
    for packed in sorted(pathlib.Path(data).glob("tokenizers/*/tokenizer.json.xz")) if data else []:
        folder = tmp_path_factory.mktemp(packed.parent.name)
        (folder / "tokenizer.json").write_bytes(lzma.decompress(packed.read_bytes()))
        folders[packed.parent.name] = folder
    return folders


@pytest.mark.parametrize("name", TRL)
def test_masks_are_those_of_transformers(mask_rows, tokenizers, name):
    trl = pytest.importorskip("trl")
    template = (pathlib.Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    numbers = random.Random(name)
    compared = 0
    for label, folder in tokenizers.items():
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        chats = [conversation(numbers, turns) for turns in (1, 1, 2, 3) for _ in range(10)]
        rows = [{"tokenizer": str(folder), "template": template, "messages": messages, "kwargs": {"bos_token": "", "eos_token": ""}}
                for messages in chats]
        for messages, got in zip(chats, mask_rows(rows), strict=True):
            try:
                wanted = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True,
                                                       return_assistant_tokens_mask=True, bos_token="", eos_token="")
            except Exception as error:  # raise_exception of the template
                assert "error" in got, (label, messages, error)
                continue
            assert "error" not in got, (label, messages, got)
            assert got["ids"] == wanted["input_ids"], (label, messages)
            assert got["weights"] == wanted["assistant_masks"], (label, messages)
            compared += 1
    assert compared > 10


def test_turns_found_by_prefixes_are_those_of_blocks(mask_rows, smollm2):
    """SmolLM2's own template has no blocks; the same template with blocks around what the assistant says has the same masks."""
    plain = (smollm2 / "chat_template.jinja").read_text()
    blocks = plain.replace(
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
        "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
        "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
        "{{ '\n' }}")
    assert "generation" in blocks
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    numbers = random.Random(5)
    chats = [conversation(numbers, turns) for turns in (1, 2, 3) for _ in range(40)]
    rows = [{"tokenizer": str(smollm2), "template": plain, "messages": messages, "kwargs": None} for messages in chats]
    differ = 0
    for messages, got in zip(chats, mask_rows(rows), strict=True):
        wanted = tokenizer.apply_chat_template(messages, chat_template=blocks, tokenize=True, return_dict=True,
                                               return_assistant_tokens_mask=True)
        assert got["ids"] == wanted["input_ids"], messages
        differ += got["weights"] != wanted["assistant_masks"]
    assert differ == 0
