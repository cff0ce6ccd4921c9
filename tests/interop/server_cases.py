"""What the client asks, in order: a session with adapters loaded, replaced and removed on the way.

A case is (name, method, path, body, options). In a body "$A" stands for the directory of adapter A. Options:
  greedy   texts and log-probs are compared, not only shapes; the body asks for two log-probs a token
  headers  sent besides (None: not sent)
  key      API key to send instead ("" for none)
  metrics  the answer is Prometheus text: names, types and labels are compared
"""
from server_client import MAX_MODEL_LEN, MODEL

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
STORY = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
GREEDY = {"temperature": 0, "max_tokens": 12, "return_token_ids": True}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city",
                                         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


def get(name, path, **options):
    return (name, "GET", path, None, options)


def post(name, path, body, **options):
    return (name, "POST", path, body, options)


def complete(name, options=None, **fields):
    return post(name, COMPLETIONS, {"model": MODEL, "prompt": STORY, "temperature": 0, "max_tokens": 8, **fields}, **(options or {}))


def chat(name, options=None, **fields):
    return post(name, CHAT, {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 8, **fields}, **(options or {}))


def without(case, *fields):
    name, method, path, body, options = case
    return (name, method, path, {key: value for key, value in body.items() if key not in fields}, options)


def load(name, adapter, path, **fields):
    return post(name, LOAD, {"lora_name": adapter, "lora_path": path, **fields})


COMPARED = {"greedy": True}

SERVER = [
    get("health", "/health"),
    get("version", "/version"),
    get("models of the base", "/v1/models"),
    get("unknown route", "/v1/nothing"),
    get("method not allowed", COMPLETIONS),
    get("no key", "/v1/models", key=""),
    get("wrong key", "/v1/models", key="wrong"),
    get("health without key", "/health", key=""),
]

ADAPTERS = [
    load("load a", "a", "$A"),
    load("load a again", "a", "$A"),
    load("load b", "b", "$B"),
    get("models with adapters", "/v1/models"),
    load("load: name of the base", MODEL, "$A"),
    load("load: no such directory", "c", "$MISSING"),
    load("load: no adapter_config.json", "c", "$NO_CONFIG"),
    load("load: no adapter_model.safetensors", "c", "$NO_WEIGHTS"),
    load("load: rank too big", "c", "$WIDE"),
    load("load: truncated", "c", "$TRUNCATED"),
    load("load: empty name", "", "$A"),
    load("load: empty path", "c", ""),
    post("load: path missing", LOAD, {"lora_name": "c"}),
    post("load: name not a string", LOAD, {"lora_name": 3, "lora_path": "$A"}),
    post("load: bad JSON", LOAD, "{"),
    post("load: not JSON by its type", LOAD, "x=1", headers={"Content-Type": "application/x-www-form-urlencoded"}),
    post("unload: unknown", UNLOAD, {"lora_name": "zz"}),
    post("unload: empty name", UNLOAD, {"lora_name": ""}),
    post("unload: name missing", UNLOAD, {}),
    complete("a answers", COMPARED, model="a", logprobs=2, **{**GREEDY, "max_tokens": 24}),
    complete("b answers", COMPARED, model="b", logprobs=2, **{**GREEDY, "max_tokens": 24}),
    chat("a chats", COMPARED, model="a", logprobs=True, top_logprobs=2, return_token_ids=True, max_tokens=16),
    load("reload a in place with b's weights", "a", "$B", load_inplace=True),
    complete("a answers as b", COMPARED, model="a", logprobs=2, **{**GREEDY, "max_tokens": 24}),
    get("models after the reload", "/v1/models"),
    load("in place of nothing", "d", "$A", load_inplace=True),
    complete("d answers", COMPARED, model="d", logprobs=2, **GREEDY),
    load("failing reload", "a", "$MISSING", load_inplace=True),
    complete("a answers after the failed reload", COMPARED, model="a", logprobs=2, **GREEDY),
    post("unload d", UNLOAD, {"lora_name": "d"}),
    complete("unloaded adapter", model="d"),
    get("models without d", "/v1/models"),
]

COMPLETE = [
    complete("text"),
    complete("text, 32 greedy tokens", COMPARED, logprobs=2, **{**GREEDY, "max_tokens": 32}),
    complete("ids", COMPARED, prompt=IDS, logprobs=2, **GREEDY),
    complete("two texts", COMPARED, prompt=[STORY, "Once upon a time"], logprobs=2, **GREEDY),
    complete("two lists of ids", COMPARED, prompt=[IDS, IDS[:2]], logprobs=2, **GREEDY),
    without(complete("model left out"), "model"),
    without(complete("max_tokens left out", ignore_eos=True), "max_tokens"),
    complete("max_tokens null", max_tokens=None),
    complete("n", n=3, temperature=1),
    complete("n of two prompts", prompt=[STORY, "Once"], n=2, temperature=0.8, top_p=0.9, top_k=20, min_p=0.01),
    complete("seed", seed=7, temperature=1),
    complete("penalties", presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
    complete("greedy with penalties", COMPARED, presence_penalty=0.5, frequency_penalty=0.7, repetition_penalty=1.2, logprobs=2,
             **{**GREEDY, "max_tokens": 24}),
    complete("logit_bias", COMPARED, logit_bias={"504": 100, "100": -100}, logprobs=2, **GREEDY),
    complete("logprobs 0", logprobs=0),
    complete("logprobs 5", COMPARED, logprobs=5, **GREEDY),
    complete("echo", echo=True),
    complete("echo with logprobs", COMPARED, echo=True, logprobs=2, max_tokens=12),
    complete("echo alone", echo=True, logprobs=2, max_tokens=0),
    complete("echo of ids", prompt=IDS, echo=True, logprobs=1),
    complete("echo of two samples", prompt=STORY, echo=True, n=2, temperature=1),
    complete("prompt_logprobs 0", prompt_logprobs=0),
    complete("prompt_logprobs 2", COMPARED, prompt_logprobs=2, logprobs=2, **GREEDY),
    complete("return_token_ids", return_token_ids=True),
    complete("return_tokens_as_token_ids", logprobs=1, return_tokens_as_token_ids=True),
    complete("stop", COMPARED, stop="Paris", logprobs=2, **GREEDY),
    complete("stop in the output", COMPARED, stop=["Paris"], include_stop_str_in_output=True, logprobs=2, **GREEDY),
    complete("stop at once", stop=[" "]),
    complete("stop with logprobs of it", stop=[" is", " Paris"], logprobs=1),
    complete("stop_token_ids", COMPARED, stop_token_ids=[30, 28], logprobs=2, **GREEDY),
    complete("min_tokens", COMPARED, stop_token_ids=[30, 28], min_tokens=9, logprobs=2, **GREEDY),
    complete("ignore_eos", ignore_eos=True),
    complete("special tokens shown", skip_special_tokens=False, prompt="<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n",
             max_tokens=40),
    complete("end token", prompt="<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n", max_tokens=40, return_token_ids=True),
    complete("add_special_tokens", add_special_tokens=False),
    complete("user and unknown field", user="me", not_a_field={"x": 1}),
    complete("request_id", request_id="mine"),
    complete("null fields", top_p=None, stop=None, logprobs=None, logit_bias=None, echo=None, stream=None, seed=None, n=1),
    complete("max_tokens 4.0", max_tokens=4.0),
]

CHATS = [
    chat("chat"),
    chat("chat, 24 greedy tokens", COMPARED, logprobs=True, top_logprobs=2, return_token_ids=True, max_tokens=24),
    chat("chat to its end", messages=[{"role": "user", "content": "Say yes."}], max_tokens=60, return_token_ids=True),
    chat("system and turns", COMPARED, messages=[{"role": "system", "content": "Be brief."}, *QUESTION,
         {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}],
         logprobs=True, top_logprobs=2, return_token_ids=True),
    chat("content parts", COMPARED, messages=[{"role": "user", "content": [{"type": "text", "text": "What is the capital"},
         {"type": "text", "text": "of France?"}]}], logprobs=True, top_logprobs=2, return_token_ids=True),
    chat("chat n", n=2, temperature=1),
    chat("chat logprobs", logprobs=True),
    chat("chat prompt_logprobs", prompt_logprobs=1),
    chat("chat return_token_ids", return_token_ids=True),
    chat("chat tokens as ids", logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True),
    chat("max_completion_tokens", max_completion_tokens=3),
    chat("chat stop", stop=["Paris", "France"]),
    chat("chat stop_token_ids", stop_token_ids=[30, 28], return_token_ids=True),
    chat("chat tools", tools=[TOOL], tool_choice="none"),
    chat("chat tools auto", tools=[TOOL], tool_choice="auto"),
    chat("chat template variables", chat_template_kwargs={"enable_thinking": False}),
    chat("no generation prompt", add_generation_prompt=False),
    chat("continue_final_message", COMPARED, messages=[*QUESTION, {"role": "assistant", "content": "The capital is"}],
         add_generation_prompt=False, continue_final_message=True, logprobs=True, top_logprobs=2, return_token_ids=True),
    chat("message without content", messages=[{"role": "user"}]),
    chat("role of its own", messages=[{"role": "wizard", "content": "x"}]),
    chat("response_format text", response_format={"type": "text"}),
    chat("chat user", user="me"),
    chat("chat to the end of the context", messages=[{"role": "user", "content": "Say yes."}], max_tokens=None),
]

STREAMS = [
    complete("stream", stream=True),
    complete("stream with usage", stream=True, stream_options={"include_usage": True}),
    complete("stream with usage all along", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    complete("stream logprobs", COMPARED, stream=True, logprobs=2, **GREEDY),
    complete("stream of the adapter", COMPARED, model="b", stream=True, logprobs=2, **{**GREEDY, "max_tokens": 24}),
    complete("stream n", stream=True, n=2, temperature=1),
    complete("stream of two prompts", stream=True, prompt=[STORY, "Once"]),
    complete("stream echo", stream=True, echo=True),
    complete("stream echo with logprobs", stream=True, echo=True, logprobs=1),
    complete("stream stop", stream=True, stop=["Paris", "city"], max_tokens=16),
    complete("stream to the end token", stream=True, prompt="<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n", max_tokens=40),
    chat("chat stream", stream=True),
    chat("chat stream with usage", stream=True, stream_options={"include_usage": True}),
    chat("chat stream with usage all along", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    chat("chat stream logprobs", COMPARED, stream=True, logprobs=True, top_logprobs=2, return_token_ids=True, max_tokens=16),
    chat("chat stream n", stream=True, n=2, temperature=1),
    chat("chat stream return_token_ids", stream=True, return_token_ids=True),
    chat("chat stream stop", stream=True, stop=["Paris", "France"], max_tokens=16),
    chat("chat stream to the end", stream=True, messages=[{"role": "user", "content": "Say yes."}], max_tokens=60),
]

LONG = [100] * (MAX_MODEL_LEN + 1)
ERRORS = [
    complete("error: unknown model", model="nobody"),
    chat("error: unknown model in chat", model="nobody"),
    post("error: bad JSON", COMPLETIONS, '{"model": '),
    post("error: bad JSON in chat", CHAT, "not json"),
    post("error: empty body", COMPLETIONS, ""),
    post("error: body a list", COMPLETIONS, "[]"),
    post("error: type of the body", COMPLETIONS, "{}", headers={"Content-Type": "text/plain"}),
    post("error: no type of the body", COMPLETIONS, "{}", headers={"Content-Type": None}),
    without(complete("error: no prompt"), "prompt"),
    without(chat("error: no messages"), "messages"),
    complete("error: empty prompt", prompt=""),
    complete("error: empty list", prompt=[]),
    complete("error: prompt a number", prompt=3),
    complete("error: prompt mixed", prompt=[1, "a"]),
    complete("error: negative id", prompt=[-1]),
    complete("error: id beyond the vocabulary", prompt=[10**6]),
    complete("error: too long", prompt=LONG),
    complete("error: prompt and max_tokens beyond the context", prompt=LONG[:MAX_MODEL_LEN - 4]),
    complete("error: max_tokens too long", max_tokens=MAX_MODEL_LEN + 1),
    chat("error: chat too long", messages=[{"role": "user", "content": "word " * MAX_MODEL_LEN}]),
    chat("error: chat max_tokens too long", max_tokens=MAX_MODEL_LEN + 1),
    complete("error: max_tokens 0", max_tokens=0),
    complete("error: max_tokens negative", max_tokens=-1),
    complete("error: max_tokens a string", max_tokens="many"),
    complete("error: max_tokens a fraction", max_tokens=1.5),
    complete("error: temperature negative", temperature=-1),
    complete("error: temperature high", temperature=3),
    complete("error: temperature a string", temperature="hot"),
    chat("error: temperature negative in chat", temperature=-1),
    complete("error: top_p 0", top_p=0),
    complete("error: top_p above 1", top_p=1.5),
    complete("error: top_k negative", top_k=-5),
    complete("error: min_p above 1", min_p=2),
    complete("error: n 0", n=0),
    complete("error: n greedy", n=2),
    complete("error: presence_penalty", presence_penalty=3),
    complete("error: frequency_penalty", frequency_penalty=-3),
    complete("error: repetition_penalty", repetition_penalty=0),
    complete("error: logprobs too many", logprobs=50),
    complete("error: logprobs negative", logprobs=-2),
    complete("error: prompt_logprobs negative", prompt_logprobs=-2),
    complete("error: prompt_logprobs too many", prompt_logprobs=50),
    complete("error: prompt_logprobs in a stream", prompt_logprobs=1, stream=True),
    complete("error: stream_options without stream", stream_options={"include_usage": True}),
    complete("error: five stops", stop=["a", "b", "c", "d", "e"]),
    complete("error: empty stop", stop=""),
    complete("error: stop a number", stop=3),
    complete("error: stop_token_ids of strings", stop_token_ids=["a"]),
    complete("error: min_tokens above max_tokens", min_tokens=20),
    complete("error: min_tokens negative", min_tokens=-1),
    complete("error: logit_bias id", logit_bias={"999999": 1}),
    complete("error: logit_bias key", logit_bias={"word": 1}),
    complete("error: suffix", suffix="tail"),
    complete("error: stream a string", stream="maybe"),
    complete("error: in a stream", temperature=-1, stream=True),
    chat("error: messages empty", messages=[]),
    chat("error: messages a string", messages="hello"),
    chat("error: message without role", messages=[{"content": "x"}]),
    chat("error: content of an unknown type", messages=[{"role": "user", "content": [{"type": "smell", "text": "x"}]}]),
    chat("error: image", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]),
    chat("error: top_logprobs without logprobs", top_logprobs=2),
    chat("error: top_logprobs too many", logprobs=True, top_logprobs=50),
    chat("error: logprobs a number", logprobs=3),
    chat("error: both generation prompt and continuing", continue_final_message=True, add_generation_prompt=True),
    chat("error: tool_choice without tools", tool_choice="auto"),
]

UNLOADING = [
    post("unload a", UNLOAD, {"lora_name": "a"}),
    post("unload a again", UNLOAD, {"lora_name": "a"}),
    post("unload b", UNLOAD, {"lora_name": "b", "lora_int_id": None}),
    get("models at the end", "/v1/models"),
    get("metrics", "/metrics", metrics=True),
    load("load: of another base", "c", "$ALIEN"),
    complete("base after a failed load", COMPARED, logprobs=2, **GREEDY),
]

ALL = SERVER + ADAPTERS + COMPLETE + CHATS + STREAMS + ERRORS + UNLOADING
assert len({case[0] for case in ALL}) == len(ALL)
