"""Conversations for every chat template: what users put into messages, and what templates refuse."""
import datetime

NOW = datetime.datetime(2026, 7, 4, 9, 0, 0)

TOOLS = [
    {"type": "function",
     "function": {"name": "get_weather", "description": "The weather of a \"place\" & <day>, é",
                  "parameters": {"type": "object",
                                 "properties": {"city": {"type": "string", "description": "City\nand country"},
                                                "days": {"type": "integer", "minimum": 1, "default": 3},
                                                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                                                "where": {"type": ["object", "null"], "nullable": True,
                                                          "properties": {"lat": {"type": "number"},
                                                                         "lon": {"type": "number"}},
                                                          "required": ["lat"]},
                                                "tags": {"type": "array", "items": {"type": "string"}}},
                                 "required": ["city"]},
                  "return": {"type": "string", "description": "A sentence"}}},
    {"type": "function", "function": {"name": "stop", "description": "Ends it.",
                                      "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def system(content):
    return {"role": "system", "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def tool(content, **more):
    return {"role": "tool", "content": content, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


NESTED = {"city": "São Paulo", "days": 2, "where": {"lat": -23.55, "lon": -46.0, "alt": None}, "tags": ["a", "b\"c"],
          "ratio": 1e-7, "big": 1e22, "whole": 3.0, "yes": True, "no": False, "emoji": "👩‍👩‍👧", "quote": "'\\'"}
ARGUMENTS = '{"city": "Zürich", "days": 1.50}'

CONVERSATIONS = {
    "user": [user("What is 2 + 3?")],
    "turns": [user("Hi"), assistant("Hello! How are you?"), user("Fine.\n\nAnd you?"), assistant("Good.")],
    "system": [system("Be short."), user("Hi"), assistant("Hello"), user("Bye")],
    "developer": [{"role": "developer", "content": "You count."}, user("Count"), assistant("1 2 3")],
    "system_only": [system("Nothing follows.")],
    "spaces": [system("  leading and trailing \n"), user("\n\n a \t"), assistant("  b  \n"), user(" ")],
    "empty": [user(""), assistant(""), user("still there?"), assistant("yes")],
    "unicode": [user("Ünï cödé 漢字 \u200b \u00a0 👨‍👩‍👧‍👦 \ud7ff \ufeff"), assistant("é <b>&amp;</b> {{ x }} {% y %}")],
    "newlines": [user("a\r\nb\rc\u2028d"), assistant("x\r\n")],
    "special": [user("<|im_start|>user\nfake<|im_end|>"), assistant("<|eot_id|><end_of_turn></s>[INST]")],
    "think": [user("Why?"), assistant("<think>\nLet me see.\n</think>\n\nBecause."), user("Really?"),
              assistant("<think>Hm</think>Yes")],
    "reasoning": [user("Why?"), assistant("Because.", reasoning_content="Let me see."), user("Really?"),
                  assistant("Yes.", reasoning_content="Hm.\nHm!")],
    "thinking": [user("Why?"), assistant("Because.", thinking="Let me see."), user("Sure?"),
                 assistant("Yes.", thinking="Hm.")],
    "think_open": [user("Why?"), assistant("<think>not closed"), user("Go on")],
    "think_closed": [user("Why?"), assistant("no opening</think>answer")],
    "tool": [user("Weather?"), assistant("", tool_calls=[call("get_weather", NESTED)]),
             tool("Sunny, 21 °C", name="get_weather"), assistant("It is sunny.")],
    "tool_none": [user("Weather?"), assistant(None, tool_calls=[call("get_weather", {"city": "Oslo"}, id="call_1")]),
                  tool('{"t": 3.5}', tool_call_id="call_1", name="get_weather"), assistant("3.5 degrees"), user("Thanks")],
    "tool_without_content": [user("Weather?"),
                             {"role": "assistant", "tool_calls": [call("get_weather", {"city": "Oslo"})]},
                             tool("cold", name="get_weather")],
    "tool_string": [user("Weather?"), assistant("I look.", tool_calls=[call("get_weather", ARGUMENTS)]),
                    tool("ok", name="get_weather")],
    "tool_plain": [user("Stop"), assistant("", tool_calls=[{"name": "stop", "arguments": {}}]), tool("done", name="stop")],
    "tool_two": [system("Use tools."), user("Two"),
                 assistant("Both.", tool_calls=[call("get_weather", {"city": "A"}), call("stop", {})],
                           reasoning_content="I need both."),
                 tool("one", name="get_weather"), tool("two", name="stop"), assistant("Done.", reasoning_content="So."),
                 user("Again"), assistant("No.")],
    "tool_list": [user("x"), assistant("", tool_calls=[call("stop", {})]), tool(parts("a", "b"), name="stop")],
    "tool_mapping": [user("x"), assistant("", tool_calls=[call("get_weather", {"city": "X"})]),
                     tool({"temperature": 21.0, "ok": True, "nested": {"a": [1, 2]}}, name="get_weather"), assistant("21")],
    "tool_thinking": [user("x"), assistant("", thinking="Plan.", tool_calls=[call("stop", {})]), tool("y", name="stop"),
                      assistant("End.", thinking="Seen.")],
    "ipython": [user("x"), assistant("", tool_calls=[call("stop", {})]), {"role": "ipython", "content": {"output": "é"}}],
    "parts": [user(parts("Hello ", "world")), assistant(parts("Hi")), user(parts(" a "))],
    "parts_system": [system(parts("Be kind.")), user("x"), assistant("y")],
    "image": [user([{"type": "image"}, {"type": "text", "text": "What is it?"}]), assistant("A cat.")],
    "image_url": [user([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "?"},
                        {"type": "video"}, {"type": "audio"}]), assistant(parts("Hm"))],
    "documents": [user("Summarize")],
    "two_users": [user("a"), user("b"), assistant("c")],
    "two_assistants": [user("a"), assistant("b"), assistant("c")],
    "assistant_first": [assistant("I begin."), user("Oh")],
    "late_system": [user("a"), system("late"), assistant("b")],
    "unknown_role": [user("a"), {"role": "critic", "content": "b"}],
    "no_role": [{"content": "a"}],
    "no_content": [{"role": "user"}],
    "null": [user(None)],
    "number": [user(5), assistant(2.5)],
    "many": [message for i in range(12) for message in (user(f"question {i}"), assistant(f"answer {i}"))],
    "weights": [user("a"), assistant("b", weight=0.5, loss=False), user("c"), assistant("d", name="bot", prefix=True)],
}

# Variables beside the conversation. Each conversation is rendered with each of them.
VARIANTS = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "tools_closed": {"tools": TOOLS[:1]},
    "no_thinking": {"add_generation_prompt": True, "enable_thinking": False},
    "thinking": {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "preserve_thinking": True},
    "effort": {"add_generation_prompt": True, "reasoning_effort": "high", "model_identity": "You are X.",
               "builtin_tools": ["browser", "python"], "date_string": "01 Jan 2026", "tools_in_user_message": False,
               "keep_past_thinking": True, "documents": [{"title": "T", "text": "é"}]},
}
EXTRA = {  # only for these
    "continue": ["turns", "system", "think", "parts", "tool", "spaces", "empty"],
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def cases():
    """(name, messages, keywords of apply_chat_template)"""
    for name, messages in CONVERSATIONS.items():
        for variant, keywords in VARIANTS.items():
            yield f"{name}/{variant}", messages, keywords
        if name in EXTRA["continue"]:
            yield f"{name}/continue", messages, {"continue_final_message": True}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def transformers_rendering(template, messages, keywords, special=SPECIAL_TOKENS):
    """What transformers makes of it: {"text", "spans"} (spans in bytes) or {"error", "message"}."""
    from transformers.utils import chat_template_utils
    chat_template_utils.datetime = Clock
    keywords = dict(keywords)
    variables = {**special, **{k: v for k, v in keywords.items()
                               if k not in ("tools", "add_generation_prompt", "continue_final_message", "documents")}}
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            [messages], chat_template=template, return_assistant_tokens_mask=not keywords.get("continue_final_message"),
            tools=keywords.get("tools"), documents=keywords.get("documents"),
            add_generation_prompt=keywords.get("add_generation_prompt", False),
            continue_final_message=keywords.get("continue_final_message", False), **variables)
    except Exception as error:  # templates may fail in any of Python's ways
        return {"error": type(error).__name__, "message": str(error)}
    size = lambda end: len(texts[0][:end].encode())
    return {"text": texts[0], "spans": [[size(a), size(b)] for a, b in (spans[0] if spans else [])]}
