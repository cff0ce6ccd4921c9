"""Rendered conversations equal transformers', for every template at hand: TRL's folder, the tokenizers of the test data,
SmolLM2. One `lockstep render` per template and way of calling; it stops at a conversation that the template refuses, so
those go through chat_rows, which goes on, and the first of them through the command too."""
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
from conftest import rows_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import chat_conversations as chats  # noqa: E402


def real_templates():
    found = importlib.util.find_spec("trl")
    folder = pathlib.Path(found.origin).parent / "chat_templates" if found else None
    return sorted(folder.glob("*.jinja")) if folder and folder.is_dir() else []


@pytest.fixture(scope="session")
def chat_rows(lockstep):
    """{"text", "spans"} or {"error"} for every row."""
    return rows_program(lockstep, "chat_rows")


def row_of(messages, keywords):
    """The row that asks for this, and the flags of the way of calling."""
    row, flags, variables = {"messages": messages}, {}, {**chats.SPECIAL_TOKENS}
    for key, value in keywords.items():
        if key == "tools":
            row["tools"] = value
        elif key in ("add_generation_prompt", "continue_final_message"):
            flags[key] = value
        else:
            variables[key] = value
    row["chat_template_kwargs"] = variables
    return row, (flags.get("add_generation_prompt", False), "continue_final_message" in flags)


def command(lockstep, template, rows, way, folder):
    """`lockstep render` of these rows."""
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ["--add-generation-prompt", "--continue-final-message"]
    flags = [name for name, given in zip(names, way) if given]
    return subprocess.run([lockstep.binary, "render", "--chat-template", template, "--input", source, *flags],
                          capture_output=True, text=True)


def expect_refusal(wanted, got, name):
    if wanted["error"] in ("TemplateError", "UndefinedError"):
        assert wanted["message"] in got, name


def compare(lockstep, chat_rows, template, source, folder):
    template.write_text(source) if not template.exists() else None
    groups = {}
    for name, messages, keywords in chats.cases():
        row, way = row_of(messages, keywords)
        wanted = chats.transformers_rendering(source, messages, keywords)
        groups.setdefault((way, "error" in wanted), []).append((name, row, wanted))
    for (way, fails), cases in groups.items():
        rows = [row for _, row, _ in cases]
        done = command(lockstep, template, rows, way, folder)
        if not fails:
            assert done.returncode == 0, done.stderr
            for (name, _, wanted), line in zip(cases, done.stdout.split("\n")[:-1], strict=True):
                got = json.loads(line)
                if "continue" in name:
                    got, wanted = {**got, "spans": []}, {**wanted, "spans": []}
                assert got == wanted, name
            continue
        assert done.returncode in (3, 4) and not done.stdout, done.stderr  # DataError, FormatError: at the first row
        expect_refusal(cases[0][2], done.stderr, cases[0][0])
        told = [{**row, "template": str(template), "add_generation_prompt": way[0], "continue_final_message": way[1]}
                for row in rows]
        for (name, _, wanted), got in zip(cases, chat_rows(told), strict=True):
            assert "error" in got, name
            expect_refusal(wanted, got["error"], name)
    return sum(map(len, groups.values()))


@pytest.mark.parametrize("template", real_templates(), ids=lambda path: path.stem)
def test_templates_of_trl(lockstep, chat_rows, template, tmp_path, clockless):
    source = template.read_text()
    copy = tmp_path / template.name
    assert compare(lockstep, chat_rows, copy, clockless(source), tmp_path) > 200


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_templates_of_tokenizers(lockstep, chat_rows, name, tmp_path, test_data, clockless):
    config = json.loads((test_data / "tokenizers" / name / "tokenizer_config.json").read_text())
    compare(lockstep, chat_rows, tmp_path / "template.jinja", clockless(config["chat_template"]), tmp_path)


def test_template_of_smollm2(lockstep, chat_rows, smollm2, tmp_path):
    compare(lockstep, chat_rows, tmp_path / "template.jinja", (smollm2 / "chat_template.jinja").read_text(), tmp_path)


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
