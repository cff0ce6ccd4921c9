"""SGLang's routes as slime and miles call them: the rollout call, an adapter's way from trainer to engine, control.

There is no SGLang here: shapes are those of its release branch (the version these clients pin).
"""
import concurrent.futures
import math
import time

import pytest

# {"input_ids", "sampling_params", "return_logprob"} as the rollout functions send it
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 12, "stop": None, "stop_token_ids": None,
            "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False}
IDS = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def client(serving):
    return serving.client()


def rollout(client, **fields):
    sampling = {**SAMPLING, **fields.pop("sampling", {})}
    answer = client.post("/generate", {"input_ids": IDS, "sampling_params": sampling, "return_logprob": True, **fields})
    assert answer.status == 200, answer.text
    return answer.json()


def ok(answer):
    assert answer.status == 200, answer.text
    return answer


def load(client, name, path):
    return client.post("/load_lora_adapter", {"lora_name": name, "lora_path": path})


def unload(client, name):
    return client.post("/unload_lora_adapter", {"lora_name": name})


def test_rollout_call(client):
    answer = rollout(client)
    meta = answer["meta_info"]
    triples = meta["output_token_logprobs"]
    assert [triple[1] for triple in triples] == answer["output_ids"] and len(triples) == 12
    assert all(len(triple) == 3 and triple[0] <= 0 and triple[2] is None for triple in triples)
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 12)
    assert isinstance(answer["text"], str) and isinstance(meta["id"], str) and isinstance(meta["cached_tokens"], int)
    assert meta["e2e_latency"] > 0 and isinstance(meta["weight_version"], str)


def test_same_numbers_as_the_openai_route(client):
    mine = rollout(client, sampling={"temperature": 0})
    other = client.post("/v1/completions", {"model": "base", "prompt": IDS, "temperature": 0, "max_tokens": 12, "logprobs": 0,
                                            "return_token_ids": True, "ignore_eos": False}).json()["choices"][0]
    assert mine["output_ids"] == other["token_ids"]
    assert [triple[0] for triple in mine["meta_info"]["output_token_logprobs"]] == other["logprobs"]["token_logprobs"]


def test_log_probs_are_of_the_temperature(client):
    """After the temperature, over the whole vocabulary: recomputed from every token's log-prob at temperature 1."""
    at_one = rollout(client, sampling={"temperature": 1.0, "top_k": 1, "max_new_tokens": 1}, top_logprobs_num=20)
    at_two = rollout(client, sampling={"temperature": 2.0, "top_k": 1, "max_new_tokens": 1}, top_logprobs_num=20)
    one, two = (answer["meta_info"]["output_top_logprobs"][0] for answer in (at_one, at_two))
    assert [entry[1] for entry in one] == [entry[1] for entry in two] and len(one) == 20
    # log-probs differ from logits by one number, so differences of them halve
    for (first, *_), (second, *_) in zip(one[1:], two[1:]):
        assert math.isclose((first - one[0][0]) / 2, second - two[0][0], abs_tol=1e-4)


def test_text_and_logprobs_of_the_prompt(client):
    answer = ok(client.post("/generate", {"text": "The capital of France is", "return_logprob": True, "logprob_start_len": 0,
                                          "return_text_in_logprobs": True, "top_logprobs_num": 2,
                                          "sampling_params": {"temperature": 0, "max_new_tokens": 4}})).json()
    meta = answer["meta_info"]
    assert [triple[1] for triple in meta["input_token_logprobs"]] == IDS
    assert meta["input_token_logprobs"][0][0] is None and all(triple[0] < 0 for triple in meta["input_token_logprobs"][1:])
    assert "".join(triple[2] for triple in meta["output_token_logprobs"]) == answer["text"]
    assert all(len(entry) == 2 for entry in meta["output_top_logprobs"]) and len(meta["output_top_logprobs"]) == 4


def test_samples_and_batches(client):
    several = rollout(client, sampling={"n": 3})
    assert isinstance(several, list) and len(several) == 3 and len({tuple(one["output_ids"]) for one in several}) > 1
    batch = ok(client.post("/generate", {"input_ids": [IDS, IDS[:2]], "sampling_params": {"temperature": 0, "max_new_tokens": 3},
                                         "lora_path": ["a", None]})).json()
    assert [one["meta_info"]["prompt_tokens"] for one in batch] == [5, 2]


def test_stops(client):
    whole = rollout(client, sampling={"temperature": 0})
    by_token = rollout(client, sampling={"temperature": 0, "stop_token_ids": [whole["output_ids"][3]]})
    first = whole["output_ids"].index(whole["output_ids"][3])
    assert by_token["meta_info"]["finish_reason"] == {"type": "stop", "matched": whole["output_ids"][3]}
    assert by_token["output_ids"] == whole["output_ids"][:first + 1]
    word = whole["text"].split()[1]
    kept = rollout(client, sampling={"temperature": 0, "stop": [word]})
    assert kept["meta_info"]["finish_reason"] == {"type": "stop", "matched": word} and kept["text"].endswith(word)
    cut = rollout(client, sampling={"temperature": 0, "stop": [word], "no_stop_trim": False})
    assert cut["text"] == whole["text"][:whole["text"].index(word)]


def test_stream_is_cumulative(client):
    whole = rollout(client, sampling={"temperature": 0})
    answer = ok(client.post("/generate", {"input_ids": IDS, "sampling_params": {**SAMPLING, "temperature": 0}, "stream": True}))
    assert answer.content_type == "text/event-stream"
    events = answer.events()
    assert events.pop() == "[DONE]"
    texts = [event["text"] for event in events]
    assert texts[-1] == whole["text"] and all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
    assert events[-1]["output_ids"] == whole["output_ids"]
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length" and events[0]["meta_info"]["finish_reason"] is None


def test_an_adapters_way(client, adapter_paths):
    """As a trainer publishes one: pause, flush, unload (errors ignored), load, continue."""
    base = rollout(client, sampling={"temperature": 0})
    seen = []
    for path in (adapter_paths["A"], adapter_paths["B"]):
        paused = ok(client.post("/pause_generation", {"mode": "abort"})).json()
        assert paused == {"message": "Generation paused successfully.", "status": "ok"}
        ok(client.get("/flush_cache"))
        unload(client, "miles_lora")
        loaded = ok(load(client, "miles_lora", path)).json()
        assert loaded["success"] is True and "miles_lora" in loaded["loaded_adapters"]
        again = load(client, "miles_lora", path)
        assert again.status == 400 and again.json()["success"] is False and "already loaded" in again.json()["error_message"]
        resumed = ok(client.post("/continue_generation", {})).json()
        assert resumed == {"message": "Generation continued successfully.", "status": "ok"}
        seen.append(rollout(client, lora_path="miles_lora", sampling={"temperature": 0})["meta_info"]["output_token_logprobs"])
    assert base["meta_info"]["output_token_logprobs"] not in seen and seen[0] != seen[1]
    by_openai = client.post("/v1/completions", {"model": "b", "prompt": IDS, "temperature": 0, "max_tokens": 12, "logprobs": 0}).json()
    assert by_openai["choices"][0]["logprobs"]["token_logprobs"] == [triple[0] for triple in seen[1]]
    gone = ok(unload(client, "miles_lora")).json()
    assert gone["success"] is True and "miles_lora" not in gone["loaded_adapters"]


def test_what_is_refused(client, adapter_paths):
    for name in ("MISSING", "WIDE", "TRUNCATED", "ALIEN", "NO_CONFIG"):
        answer = load(client, "bad", adapter_paths[name])
        assert answer.status == 400 and answer.json()["success"] is False and answer.json()["error_message"]
        assert "bad" not in answer.json()["loaded_adapters"]
    assert unload(client, "bad").status == 400
    for body in ({}, {"input_ids": IDS, "text": "both"}, {"input_ids": "x"}, {"input_ids": IDS, "sampling_params": {"temperature": -1}},
                 {"input_ids": [100] * 600}, {"input_ids": IDS, "lora_path": "nobody"}, {"input_ids": []},
                 {"input_ids": IDS, "sampling_params": {"max_new_tokens": 600}}):
        answer = client.post("/generate", body)
        assert answer.status == 400 and answer.json()["error"]["message"], body
    assert client.post("/generate", "{").status == 400


def test_pausing_aborts_and_abort_request(client):
    """What is in flight ends with what it has, as aborted; a paused server keeps requests until it goes on."""
    long = {"sampling": {"max_new_tokens": 400, "ignore_eos": True}}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for stopping in (lambda: client.post("/pause_generation", {"mode": "abort"}),
                         lambda: client.post("/abort_request", {"abort_all": True}),
                         lambda: client.post("/abort_request", {"rid": "mine"})):
            running = pool.submit(rollout, client, rid="mine", **long)
            time.sleep(0.5)
            ok(stopping())
            ok(client.post("/continue_generation", {}))
            meta = running.result(timeout=60)["meta_info"]
            assert meta["finish_reason"]["type"] == "abort" and meta["completion_tokens"] < 400
        ok(client.post("/pause_generation", {"mode": "in_place"}))
        waiting = pool.submit(rollout, client)
        time.sleep(0.5)
        assert not waiting.done()
        ok(client.post("/continue_generation", {}))
        assert waiting.result(timeout=60)["meta_info"]["completion_tokens"] == 12


def test_health_and_information(client):
    assert client.get("/health").status == 200
    assert client.get("/health_generate").status == 200
    assert isinstance(ok(client.get("/model_info")).json()["model_path"], str)
