"""The official `openai` client against `lockstep serve`: completions, chat, streams, log-probs, errors as its exceptions."""
import pytest

openai = pytest.importorskip("openai")

from server_client import API_KEY, MODEL  # noqa: E402

STORY = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(serving):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{serving.port}/v1", api_key=API_KEY, max_retries=0)


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models][:3] == [MODEL, "a", "b"]
    assert models[1].parent == MODEL and models[0].max_model_len == 512


def test_completion(client):
    answer = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=8)
    assert answer.object == "text_completion" and answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 8, 13)


def test_completion_of_ids_and_several_prompts(client):
    one = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=8, extra_body={"return_token_ids": True})
    ids = one.choices[0].prompt_token_ids
    several = client.completions.create(model=MODEL, prompt=[ids, ids[:3]], temperature=0, max_tokens=8)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == one.choices[0].text != several.choices[1].text


def test_completion_stream(client):
    whole = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=12)
    parts = list(client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=12, stream=True,
                                           stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == 12
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "length"
    assert len({part.id for part in parts}) == 1


def test_completion_logprobs(client):
    choice = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=6, logprobs=3).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    for token, logprob, top in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert len(top) == 3 and top[token] == logprob == max(top.values()) <= 0
    assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]


def test_samples(client):
    choices = client.completions.create(model=MODEL, prompt="Once upon a time", temperature=1, max_tokens=16, n=4).choices
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in choices}) > 1


def test_seed(client):
    def sample(seed):
        return client.completions.create(model=MODEL, prompt="Once upon a time", temperature=1, max_tokens=16, seed=seed).choices[0].text

    assert sample(5) == sample(5) != sample(6)


def test_stop(client):
    whole = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=12).choices[0].text
    word = whole.split()[2]
    choice = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=12, stop=[word, "never"]).choices[0]
    assert choice.text == whole[:whole.index(word)]
    assert choice.finish_reason == "stop" and choice.stop_reason == word


def test_echo(client):
    choice = client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=4, echo=True, logprobs=1).choices[0]
    assert choice.text.startswith(STORY) and "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None and all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=16)
    message = answer.choices[0].message
    assert message.role == "assistant" and "Paris" in message.content and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client):
    whole = client.chat.completions.create(model="a", messages=QUESTION, temperature=0, max_tokens=16).choices[0].message.content
    parts = list(client.chat.completions.create(model="a", messages=QUESTION, temperature=0, max_tokens=16, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole
    assert parts[-1].choices[0].finish_reason in ("stop", "length")


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0, max_tokens=16) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text


def test_chat_logprobs(client):
    choice = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=6, logprobs=True,
                                            top_logprobs=2).choices[0]
    for entry in choice.logprobs.content:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == entry.logprob
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content


def test_raw_response(client):
    raw = client.completions.with_raw_response.create(model="a", prompt=STORY, temperature=0, max_tokens=4,
                                                      extra_body={"return_token_ids": True})
    assert raw.http_response.status_code == 200 and raw.headers["content-type"].startswith("application/json")
    answer = raw.parse()
    assert answer.model == "a" and len(answer.choices[0].token_ids) == 4


def test_versions_of_an_adapter(client, serving, adapter_paths):
    """Every answer says which version made it; a request may pin an older one, and gets that one's log-probs."""
    def ask(**fields):
        return client.completions.create(model="v", prompt=STORY, temperature=0, max_tokens=4, logprobs=0,
                                         extra_body={"return_token_versions": True, **fields})

    def load(path, **fields):
        answer = serving.client().post("/v1/load_lora_adapter", {"lora_name": "v", "lora_path": path, **fields})
        assert answer.status == 200, answer.text

    load(adapter_paths["A"])
    first = ask()
    assert first.choices[0].token_versions == [first.adapter_version] * 4
    load(adapter_paths["B"], load_inplace=True)
    second, pinned = ask(), ask(adapter_version=first.adapter_version)
    assert second.adapter_version > first.adapter_version == pinned.adapter_version
    assert pinned.choices[0].logprobs == first.choices[0].logprobs != second.choices[0].logprobs
    card = next(model for model in client.models.list().data if model.id == "v")
    assert card.adapter_version == second.adapter_version and card.adapter_versions == [first.adapter_version, second.adapter_version]
    with pytest.raises(openai.NotFoundError):
        ask(adapter_version=second.adapter_version + 7)
    base = client.completions.create(model=MODEL, prompt=STORY, max_tokens=1, extra_body={"return_token_versions": True})
    assert base.adapter_version is None and base.choices[0].token_versions == [None]


def test_extra_body(client):
    answer = client.completions.create(model=MODEL, prompt=STORY, temperature=1, max_tokens=6,
                                       extra_body={"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True,
                                                   "min_tokens": 6, "prompt_logprobs": 1, "return_token_ids": True})
    choice = answer.choices[0]
    assert len(choice.token_ids) == 6 and len(choice.prompt_logprobs) == len(choice.prompt_token_ids) == 5
    assert choice.prompt_logprobs[0] is None


@pytest.mark.parametrize("fields, error", [
    ({"model": "nobody"}, openai.NotFoundError),
    ({"temperature": -1}, openai.BadRequestError),
    ({"prompt": [100] * 600}, openai.BadRequestError),
    ({"max_tokens": 0}, openai.BadRequestError),
    ({"n": 2, "temperature": 0}, openai.BadRequestError),
    ({"extra_body": {"top_k": "many"}}, openai.BadRequestError),
], ids=["model", "temperature", "too long", "max_tokens", "greedy n", "type"])
def test_errors(client, fields, error):
    with pytest.raises(error) as raised:
        client.completions.create(**{"model": MODEL, "prompt": STORY, "max_tokens": 4, **fields})
    assert raised.value.body["message"] and raised.value.body["code"] == raised.value.status_code


def test_errors_in_chat_and_streams(client):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
    with pytest.raises(openai.NotFoundError):
        list(client.chat.completions.create(model="nobody", messages=QUESTION, stream=True))
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[])


def test_wrong_key(serving):
    stranger = openai.OpenAI(base_url=f"http://127.0.0.1:{serving.port}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.completions.create(model=MODEL, prompt=STORY)


def test_a_client_that_leaves(client):
    """A stream closed early is aborted, and the server goes on."""
    with client.completions.create(model=MODEL, prompt=STORY, max_tokens=400, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert client.completions.create(model=MODEL, prompt=STORY, temperature=0, max_tokens=2).usage.completion_tokens == 2
