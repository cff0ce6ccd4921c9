#!/usr/bin/env python3
"""Sums, differences and products as chat prompts for an instruct model in ChatML: train.jsonl and test.jsonl, disjoint.

    arithmetic_rows.py OUT_DIR [--train 1500] [--test 300] [--seed 1]
"""
import argparse
import json
import pathlib
import random

PROMPT = "<|im_start|>user\nWhat is {}? Answer with the number only.<|im_end|>\n<|im_start|>assistant\n"


def row(random_source):
    kind = random_source.choice("+-*")
    a, b = random_source.randint(2, 40), random_source.randint(2, 40)
    if kind == "*":
        a, b = random_source.randint(2, 12), random_source.randint(2, 12)
    if kind == "-" and b > a:
        a, b = b, a
    label = {"+": a + b, "-": a - b, "*": a * b}[kind]
    return f"{a} {kind} {b}", label


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--train", type=int, default=1500)
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = random.Random(options.seed)
    questions = {}
    while len(questions) < options.train + options.test:
        question, label = row(source)
        questions[question] = label
    lines = [json.dumps({"prompt": PROMPT.format(q), "label": str(label)}) for q, label in questions.items()]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "test.jsonl").write_text("\n".join(lines[: options.test]) + "\n")
    (options.out / "train.jsonl").write_text("\n".join(lines[options.test :]) + "\n")


if __name__ == "__main__":
    main()
