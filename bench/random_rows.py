"""Rows of random tokens for `lockstep sft`, the same in every call."""
import json
import random


def write_rows(file, rows, tokens, vocabulary):
    generator = random.Random(1)
    with open(file, "w") as out:
        for _ in range(rows):
            row = [generator.randrange(vocabulary) for _ in range(tokens)]
            out.write(json.dumps({"tokens": row, "loss_mask": [0] + [1] * (tokens - 1)}) + "\n")
