#!/usr/bin/env python3
"""Trains a small GPT-2 style tokenizer on this repository's own text and writes golden cases for it and for models/arith.

  python tools/golden/gpt2_style.py --out tests/golden/tokenizer          train, and write every case
  python tools/golden/gpt2_style.py --out tests/golden/tokenizer --cases  write the cases only; keeps the tokenizer
  (then tools/golden/make_goldens.py --manifest records the files in MANIFEST.json)

  gpt2_style/tokenizer.json   byte-level BPE with GPT-2's expression and added tokens of every kind
  gpt2_style/variants.json    {name: JSON merge patch (RFC 7396) of tokenizer.json}
  gpt2_style/cases.jsonl      {"variant", "text", "ids", "decoded", "without_special"}
  arith_cases.jsonl           the same for models/arith/tokenizer.json, without variants
ids = encode(text, add_special_tokens=False). Lines are ASCII.
"""
import argparse
import copy
import json
import pathlib

import tokenizer_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCAB_SIZE = 3000
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

# What the library's flags do shows only beside white space and words.
FLAGS = [
    "a <mask> b", "a<mask>b", "  \t\n<mask>  \n", "<mask>", " <mask> <mask>  <mask>", "\u3000\u00a0<mask>\u2003x", "a\u200b<mask>",
    "a <pad> b", "<pad>\r\n\r\n  x", "<pad> <pad>  <pad>", "<pad>\u3000\u205fx", " <pad><mask> ", "<pad> <mask>", "<mask> <pad>",
    "a  <both>  b", " <both> <both> ", "<pad> <both> <mask>", "x<both>\n", "word", "a word b", "words", "sword", "word1", "word_",
    "word.", "(word)", "word\u0301", "\u00e9word", "word\u4e2d", "word\u200d", "word \u0661word", "word-word", "wordword word",
    "<word>word</word>", "word\u203fword", "<think>", "<thinking>", "<think><thinking><thinkin>", "<thin", "a<think>b</think>",
    "two words", "two  words", "twotwo words words", "a lead", "a  lead", "lead", " lead lead", "<mask> lead", "<pad> lead",
    "na\u00efve", "unna\u00efve na\u00efvety", "na\u00efve\u00efve", "<|endoftext|> <mask><|im_start|><pad> word<|im_end|>",
    "\u0130 \u01c5 \u0345 \u10d0 \u1c90", "\u0663 \u2167 \u00bd\u00bc 1\u0663\u21672\u00bd", "\U00011f50\U00011f51 \U0001ccf0\U0001ccf9",
    "\U000105c0\U000105c1 \U0001e5d0", "\U00011de0\U00011de1", "\U0001fae9 \U0001faea",
    "a" * 300, " " * 300 + "x", "ab" * 150, "\u00e9" * 100, "\n" * 50, "\r\n" * 30, "don't" * 40, "\U0001f600" * 20,
    "\x00\x00\x01a\x00", "\x01\x00", "a\x00b\x01c",
]
# Damaged UTF-8 in the decoder: ids of single bytes, spelled as the alphabet of byte-level tokenizers spells them.
BROKEN = [
    "e4", "e4b8", "e4b8e4b8ad", "ff", "c0af", "eda080", "f0908080", "f08080", "f4908080", "e28080e2", "80", "8080", "61c3", "c3a9c3",
    "f09f9880f09f98", "e0a0", "e09f80", "c241", "e24142", "f0413d", "fffefd", "efbfbd", "00ff00", "edbfbf", "f8888080", "fc",
]


def train():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    files = [f for pattern in ("src/*/*.h", "docs/*.md", "tools/*/*.py") for f in sorted(ROOT.glob(pattern))]
    lines = [f.read_text() for f in files if "unicode_tables" not in f.name]
    lines += [t for t in tokenizer_cases.PROSE + tokenizer_cases.UNICODE + tokenizer_cases.EMOJI for _ in range(3)]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
    raw = dict(normalized=False)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, **raw), AddedToken("<pad>", rstrip=True, **raw)])
    tokenizer.add_tokens([
        AddedToken("<both>", lstrip=True, rstrip=True, **raw), AddedToken("word", single_word=True), AddedToken("<think>"),
        AddedToken("<thinking>"), AddedToken("two words", **raw), AddedToken(" lead"), AddedToken("na\u00efve"),
    ])
    return json.loads(tokenizer.to_str())


def variants(base):
    """Patches that turn on one thing each."""
    digits = [{"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": d}, BYTE_LEVEL]} for d in (True, False)]
    # The bytes 0 and 1 go, and two tokens that nothing merges into keep their ids, for the library numbers added tokens from
    # the size of the vocabulary.
    vocab = base["model"]["vocab"]
    without = {"vocab": {"\u0100": None, "\u0101": None, "unused0": vocab["\u0100"], "unused1": vocab["\u0101"]}}
    return {
        "plain": {},
        "each_digit": {"pre_tokenizer": digits[0]},
        "digit_runs": {"pre_tokenizer": digits[1]},
        "prefix_space": {"pre_tokenizer": {"add_prefix_space": True}},
        "no_regex": {"pre_tokenizer": {"use_regex": False}},
        "ignore_merges": {"model": {"ignore_merges": True}},
        "unknown_dropped": {"model": without},
        "unknown": {"model": without | {"unk_token": "<|endoftext|>"}},
        "unknown_fused": {"model": without | {"unk_token": "<|endoftext|>", "fuse_unk": True}},
    }


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return patch
    target = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge_patch(target.get(key), value)
    return target


def case(tokenizer, text=None, ids=None):
    if ids is None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    out = {} if text is None else {"text": text}
    return out | {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                  "without_special": tokenizer.decode(ids, skip_special_tokens=True)}


def broken_cases(tokenizer):
    itself = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in itself]
    spelling = {b: chr(b) for b in itself} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    for text in BROKEN:
        yield case(tokenizer, ids=[tokenizer.token_to_id(spelling[b]) for b in bytes.fromhex(text)])


def write_lines(path, rows):
    with open(path, "w", newline="\n") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--cases", action="store_true")
    args = parser.parse_args()
    import tokenizers
    folder = args.out / "gpt2_style"
    folder.mkdir(parents=True, exist_ok=True)
    if not args.cases:
        (folder / "tokenizer.json").write_text(json.dumps(train(), ensure_ascii=False, separators=(",", ":")))
    base = json.loads((folder / "tokenizer.json").read_text())
    patches = variants(base)
    (folder / "variants.json").write_text(json.dumps(patches, indent=1) + "\n")

    c = tokenizer_cases
    texts = list(dict.fromkeys(c.PROSE + c.CONTRACTIONS + c.SPACES + c.DIGITS + c.UNICODE + c.EMOJI + c.SPECIAL + c.CODE + FLAGS +
                               c.random_texts(40)))
    few = [t for t in texts if t in FLAGS or t in c.DIGITS or t in c.SPACES][::2] + ["\x00\x00\x01a\x00", "\x01\x00", "a\x00b\x01c"]
    rows = []
    for name, patch in patches.items():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(merge_patch(base, patch)))
        rows += [{"variant": name} | case(tokenizer, text) for text in (texts if name == "plain" else dict.fromkeys(few))]
        if name == "plain":
            rows += [{"variant": name} | row for row in broken_cases(tokenizer)]
    write_lines(folder / "cases.jsonl", rows)
    arith = tokenizers.Tokenizer.from_file(str(ROOT / "models/arith/tokenizer.json"))
    problems = [json.loads(line)["prompt"] for line in (ROOT / "models/arith/test.jsonl").read_text().splitlines()[:40]]
    worked = ["57+68=#### 131", "57+68=ones 15 tens 12 #### 125", "57+68=7+8=15 5+6+1=12 #### 125<|endoftext|>"]
    write_lines(args.out / "arith_cases.jsonl", [case(arith, t) for t in problems + worked + texts])
    print(len(rows), "cases of", len(patches), "variants,", (folder / "tokenizer.json").stat().st_size, "bytes of tokenizer")


if __name__ == "__main__":
    main()
