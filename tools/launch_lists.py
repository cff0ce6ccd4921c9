#!/usr/bin/env python3
"""Argument lists of published launch scripts, one file each, for tests/app/launch_lists_test.cpp.

    tools/launch_lists.py MILES_CHECKOUT OUTPUT_DIRECTORY

MILES_CHECKOUT: a git directory of radixark/miles. tests/snapshots/launch_scripts of its HEAD holds what each launch
script would run. Of every script that trains a dense text model the words behind train.py (or train_async.py) are
written, one a line. Lists of experts (--num-experts), and of models that are experts without saying so, are left out.
"""

import shlex
import subprocess
import sys
from pathlib import Path

SNAPSHOTS = "tests/snapshots/launch_scripts/"
# Mixtures of experts and families that are not transformers of the kind that is trained here; their lists name no
# --num-experts, because a checkpoint or a spec does.
OTHER_MODELS = ("GLM", "Kimi", "235B", "30B", "gemma-4", "Nemotron", "gpt-oss", "moe", "Moe")


def git(checkout, *args):
    return subprocess.run(["git", "-C", checkout, *args], check=True, capture_output=True, text=True).stdout


def commands(text):
    """Of each `### N` section its words: either one quoted word a line, or a shell command over several lines."""
    for section in text.split("\n### ")[1:]:
        lines = section.split("\n")[1:]
        words = [line for line in lines if line.strip()]
        if words and all(line.startswith('"') for line in words):
            yield [eval(line, {"__builtins__": {}}) for line in words]  # string literals
        else:
            # A line that ends in a backslash goes on anyway; quotes may span lines.
            yield shlex.split("\n".join(lines).replace("\\\n", " "), posix=True)


def train_arguments(words):
    for i, word in enumerate(words):
        if word.endswith(("train.py", "train_async.py")):
            return [w for w in words[i + 1 :] if w != "${MODEL_ARGS[@]}"]  # the model's shape, of another script
    return None


def main():
    checkout, output = sys.argv[1], Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("*.txt"):
        old.unlink()
    for path in git(checkout, "ls-tree", "-r", "--name-only", "HEAD", SNAPSHOTS).split():
        lists = [found for words in commands("\n" + git(checkout, "show", f"HEAD:{path}")) if (found := train_arguments(words))]
        for arguments in lists:
            if "--num-experts" in arguments or "--hf-checkpoint" not in arguments:
                continue
            model = arguments[arguments.index("--hf-checkpoint") + 1]
            if any(other in model for other in OTHER_MODELS):
                continue
            name = path.removeprefix(SNAPSHOTS).removesuffix(".txt").replace("/", "__")
            for part in ("sh__examples__", "py__scripts__", "self_executing__examples__", "infra_features__", "experimental__",
                         "__execute", "__import", "scripts__", "run__run__", ".sh", ".py"):
                name = name.replace(part, "")
            (output / f"{name}.txt").write_text("".join(word.replace("\n", " ") + "\n" for word in arguments))
            print(name, len(arguments), model)


if __name__ == "__main__":
    main()
