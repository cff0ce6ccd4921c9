#!/usr/bin/env python3
"""Writes golden cases of the real tokenizers in a LOCKSTEP_TEST_DATA folder, which are not committed themselves.

  python tools/golden/tokenizer_real.py --test-data DIR --out tests/golden/tokenizer
  (then tools/golden/make_goldens.py --manifest records the files in MANIFEST.json)

  real_cases.jsonl   {"tokenizer", "text", "ids", "spans", "with_special", "decoded", "without_special"}, as tokenizer_styles.py
  real_source.json   {tokenizer: sha256 of its tokenizer.json}
"""
import argparse
import hashlib
import json
import lzma
import pathlib

import gpt2_style
import tokenizer_cases as c
import tokenizer_styles

TOKENIZERS = ["qwen3", "llama3_1", "gptoss"]
CHAT = ["<|im_start|>user\nHi<|im_end|>\n<think>\n\n</think>\n\n<tool_call>{}</tool_call>", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        "<|start|>assistant<|channel|>final<|message|>Hi<|return|><|endoftext|>"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test-data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    import tokenizers
    common = c.CONTRACTIONS + c.SPACES + c.DIGITS + c.UNICODE + c.EMOJI + c.CODE + c.PROSE
    rows, source = [], {}
    for number, name in enumerate(TOKENIZERS):
        data = lzma.decompress((args.test_data / "tokenizers" / name / "tokenizer.json.xz").read_bytes())
        source[name] = hashlib.sha256(data).hexdigest()
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
        texts = CHAT + tokenizer_styles.TEXTS + common[number::len(TOKENIZERS)]
        rows += [{"tokenizer": name} | tokenizer_styles.case(tokenizer, text) for text in texts]
    gpt2_style.write_lines(args.out / "real_cases.jsonl", rows)
    (args.out / "real_source.json").write_text(json.dumps(source, indent=2) + "\n")
    print(len(rows), "cases")


if __name__ == "__main__":
    main()
