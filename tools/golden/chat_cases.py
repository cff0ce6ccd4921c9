#!/usr/bin/env python3
"""Writes tests/golden/chat/cases.jsonl: what jinja2, as transformers sets it up, makes of small templates of our own and
of random programs. The templates of real models are compared in tests/interop, from where they are installed.

  python tools/golden/chat_cases.py --out tests/golden/chat      (needs transformers, jinja2)

A line is {"template", "variables"} (a number and null: those of shared.json) with {"text", "spans"} (bytes of text inside {% generation %}), {"message"} (of
raise_exception or an undefined value) or {"fails": true} (Python raises something else).
"""
import argparse
import copy
import json
import pathlib
import sys
import warnings

import chat_conversations as chats

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "interop"))
import jinja_programs  # noqa: E402

TEMPLATES = [
    # Turns with markers, a default system message, a generation prompt.
    """{%- if messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system, rest = 'You help.', messages %}
{%- endif %}
{{- bos_token ~ '<sys>' ~ system|trim ~ '</sys>\\n' }}
{%- for m in rest %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) and m.role in ['user', 'assistant'] %}
        {{- raise_exception("Roles must alternate: " + m.role ~ ' at ' ~ loop.index) }}
    {%- endif %}
    {{- '<' + m.role + '>' }}
    {%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
    {%- else %}{{ m.content }}{% endif %}
{%- endfor %}
{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}
""",
    # Tools: macros, namespaces, tojson, dictsort, nested loops.
    """{% macro describe(schema, depth=0) -%}
{{ '  ' * depth }}{{ (schema.type if schema.type is string else schema.type|join('|'))|upper }}
{%- for name, inner in (schema.properties or {})|dictsort %}

{{ '  ' * depth }}- {{ name }}{{ '*' if name in schema.get('required', []) }}: {{ describe(inner, depth + 1)|trim }}
{%- endfor %}
{%- endmacro %}
{%- set ns = namespace(calls=0, last=none) -%}
{% if tools %}{% for tool in tools %}
# {{ tool.function.name|capitalize }} {{ tool.function.description|tojson }}
{{ describe(tool.function.parameters) }}
{% endfor %}{{ tools|map(attribute='function.name')|list }}{{ tools | tojson(indent=2) }}{% endif %}
{% for message in messages %}
  {% for call in message.tool_calls or [] if call is mapping %}
    {% set f = call.function if call.function is defined else call %}
    {% set ns.calls = ns.calls + 1 %}{% set ns.last = f.name %}
    {%+ if f.arguments is string %}{{ f.arguments }}{% else %}{% for k, v in f.arguments|items %}{{ k }}={{ v if v is string else v|tojson }};{% endfor %}{{ f.arguments }}{% endif %}
  {% endfor %}
  {%- if message.role == 'tool' %}[{{ loop.previtem.role if loop.previtem else 'first' }}]{{ message.content }}{% if loop.last or loop.nextitem.role != 'tool' %} end{% endif %}{% endif %}
{% endfor %}
{{ ns.calls }} {{ ns.last }}""",
    # Content of parts, thinking, slices, search from the end, break and continue.
    """{% set ns = namespace(last=-1) %}
{% for m in messages[::-1] %}{% if m.role == 'user' and m.content is string and not m.content.startswith('<') %}{% set ns.last = messages|length - 1 - loop.index0 %}{% break %}{% endif %}{% endfor %}
{% for m in messages -%}
{% if m.role == 'critic' %}{% continue %}{% endif -%}
{%- if m.content is string %}{% set text = m.content %}
{%- elif m.content is iterable %}{% set text = m.content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join('/') %}
{%- else %}{% set text = '' %}{% endif %}
{%- set thoughts = '' %}
{%- if m.reasoning_content %}{% set thoughts = m.reasoning_content %}
{%- elif '</think>' in text %}{% set thoughts = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{ m['role'] }}{{ ':' if loop.index0 > ns.last else '.' }}{{ '(' ~ thoughts.strip() ~ ')' if thoughts and loop.index0 > ns.last }}{{ text }}
{%- else %}nobody{% endfor %}
{{ strftime_now("%d %B %Y") }}{{ messages|map(attribute='role')|unique|join(',') }}{{ messages[-1]|tojson }}{{ messages[0].keys()|list }}""",
]
NAMES = ["turns", "system", "spaces", "empty", "unicode", "think", "reasoning", "tool", "tool_two", "tool_string", "parts",
         "unknown_role", "two_users", "null"]


def result(template, variables):
    from transformers.utils import chat_template_utils
    chat_template_utils.datetime = chats.Clock
    try:
        compiled = chat_template_utils._cached_compile_jinja_template(template)
        blocks, indices = [], []
        with compiled.environment.activate_tracker(blocks, indices):
            for block in compiled.generate(**copy.deepcopy(variables)):
                blocks.append(block)
        text = "".join(blocks)
    except Exception as error:  # in any of Python's ways
        named = type(error).__name__ in ("TemplateError", "UndefinedError")
        return {"message": str(error)} if named else {"fails": True}
    size = lambda end: len(text[:end].encode())
    return {"text": text, "spans": [[size(a), size(b)] for a, b in indices]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, type=pathlib.Path)
    out = parser.parse_args().out
    warnings.simplefilter("ignore")
    rows = []
    for number, template in enumerate(TEMPLATES):
        for name in NAMES:
            for keywords in ({"add_generation_prompt": True, "enable_thinking": False}, {"tools": chats.TOOLS}):
                variables = {**chats.SPECIAL_TOKENS, "tools": None, "add_generation_prompt": False, **keywords,
                             "messages": chats.CONVERSATIONS[name]}
                rows.append({"template": number, "variables": variables, **result(template, variables)})
    programs = jinja_programs.Programs(42)
    for i in range(900):
        template = "{{ " + programs.expression(2) + " }}" if i < 700 else programs.program()
        wanted = result(template, jinja_programs.VARIABLES)
        if " object at 0x" not in wanted.get("text", "") and not ("fails" in wanted and i % 4):
            rows.append({"template": template, "variables": None, **wanted})
    out.mkdir(parents=True, exist_ok=True)
    shared = {"templates": TEMPLATES, "variables": jinja_programs.VARIABLES}
    (out / "shared.json").write_text(json.dumps(shared, indent=1) + "\n")
    (out / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
