"""Rendered conversations equal transformers', for every template at hand: TRL's folder, the tokenizers of the test data,
SmolLM2. One `lockstep render` per template and way of calling."""
import importlib.util
import json
import pathlib
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import chat_conversations as chats  # noqa: E402


def real_templates():
    found = importlib.util.find_spec("trl")
    folder = pathlib.Path(found.origin).parent / "chat_templates" if found else None
    return sorted(folder.glob("*.jinja")) if folder and folder.is_dir() else []


def render(lockstep, template, name, messages, keywords, folder):
    """{"text", "spans"} or {"error": what lockstep says}."""
    row = {"messages": messages}
    arguments = []
    variables = {**chats.SPECIAL_TOKENS}
    for key, value in keywords.items():
        if key == "tools":
            row["tools"] = value
        elif key == "add_generation_prompt":
            arguments += ["--add-generation-prompt"] if value else []
        elif key == "continue_final_message":
            arguments += ["--continue-final-message"]
        else:
            variables[key] = value
    row["chat_template_kwargs"] = variables
    return row, tuple(arguments)


def rendered(lockstep, template, rows, arguments, folder):
    """Results of all rows; after an error the rest are tried again, for the command stops at it."""
    import subprocess
    results, source = [], folder / "rows.jsonl"
    output = folder / "out.jsonl"
    while len(results) < len(rows):
        source.write_text("".join(json.dumps(row) + "\n" for row in rows[len(results):]))
        done = subprocess.run([lockstep.binary, "render", "--chat-template", template, "--input", source, *arguments],
                              capture_output=True, text=True)
        results += [json.loads(line) for line in done.stdout.split("\n") if line]
        if done.returncode == 0:
            break
        assert done.returncode in (3, 4), done.stderr  # DataError, FormatError: no crash
        results.append({"error": done.stderr})
    return results


def compare(lockstep, template, source, tmp_path):
    template.write_text(source) if not template.exists() else None
    groups = {}
    for name, messages, keywords in chats.cases():
        row, arguments = render(lockstep, template, name, messages, keywords, tmp_path)
        wanted = chats.transformers_rendering(source, messages, keywords)
        groups.setdefault((arguments, "error" in wanted), []).append((name, row, wanted))
    for (arguments, fails), cases in groups.items():
        results = rendered(lockstep, template, [row for _, row, _ in cases], arguments, tmp_path)
        assert len(results) == len(cases)
        for (name, _, wanted), got in zip(cases, results):
            if not fails:
                if "continue" in name:
                    got, wanted = {**got, "spans": []}, {**wanted, "spans": []}
                assert got == wanted, name
                continue
            assert "error" in got, name
            if wanted["error"] in ("TemplateError", "UndefinedError"):
                assert wanted["message"] in got["error"], name
    return sum(map(len, groups.values()))


@pytest.mark.parametrize("template", real_templates(), ids=lambda path: path.stem)
def test_templates_of_trl(lockstep, template, tmp_path, clockless):
    source = template.read_text()
    copy = tmp_path / template.name
    assert compare(lockstep, copy, clockless(source), tmp_path) > 200


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_templates_of_tokenizers(lockstep, name, tmp_path, test_data, clockless):
    config = json.loads((test_data / "tokenizers" / name / "tokenizer_config.json").read_text())
    compare(lockstep, tmp_path / "template.jinja", clockless(config["chat_template"]), tmp_path)


def test_template_of_smollm2(lockstep, smollm2, tmp_path):
    compare(lockstep, tmp_path / "template.jinja", (smollm2 / "chat_template.jinja").read_text(), tmp_path)


def test_a_directory_is_read_as_transformers_reads_it(lockstep, smollm2, tmp_path):
    """Template and special tokens from the files of a directory."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    messages = chats.CONVERSATIONS["turns"]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    lockstep("render", "--hf-checkpoint", smollm2, "--input", tmp_path / "rows.jsonl", "--output", tmp_path / "out.jsonl",
             "--add-generation-prompt")
    got = json.loads((tmp_path / "out.jsonl").read_text())
    assert got["text"] == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
