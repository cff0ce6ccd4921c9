#!/usr/bin/env python3
"""Trains a small tokenizer that merges characters (the style of Llama 2 and Gemma) and writes golden cases for it, and for
everything else a tokenizer.json may hold.

  python tools/golden/tokenizer_styles.py --out tests/golden/tokenizer          train, and write every case
  python tools/golden/tokenizer_styles.py --out tests/golden/tokenizer --cases  write the cases only; keeps the tokenizer
  (then tools/golden/make_goldens.py --manifest records the files in MANIFEST.json)

  styles/characters.json  BPE of characters with <0x00> to <0xFF>, as a Llama 2 file has it
  styles/variants.json    {name: {"base": "characters" or "bytes", "patch": JSON merge patch (RFC 7396)}}; the base "bytes" is
                          gpt2_style/tokenizer.json (tools/golden/gpt2_style.py)
  styles/cases.jsonl      {"variant", "text", "ids", "spans", "with_special", "decoded", "without_special"}: spans are bytes
                          of the text, made of the library's characters; with_special: ids of encode(add_special_tokens=True)
"""
import argparse
import itertools
import json
import pathlib

import gpt2_style
import tokenizer_cases

VOCAB_SIZE = 700
MARK = "\u2581"
Q = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
L = Q.replace(r"\p{N}|", r"\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}|"
     r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# No tokenizer's own, so that an engine matches it: punctuation and marks apart, as DeepSeek and Qwen 3.5 cut.
P = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\d{1,2}|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = [
    "\u2581", "\u2581a", " \u2581a\u2581\u2581b", "a \u2581 b", "<0x41>", "<0x0A><0xE4>", "\u00e9\u00c9\u0130\u1e9e", "<s>a</s>", "<unk>", " <s> a",
    "e\u0323\u0301 e\u0301\u0323", "\u1ec7\u0301 \u1e69 q\u0307\u0323", "a\u0316\u0301b", "\u0301\u0323x", "\u1100\u1161\u11a8\u11a8 \u1112\u1161\u11ab\uac00\u11a8", "\u0344 \u0374 \u2126 \u212b\u0327",
    "\ufb03 \ufdfa \u00bd\u2460 \u3392 \uff76\uff9e", "\u0f73\u0f71\u0f72 \u0cca\u0cd5", "\u0958\u09dc \u2adc", "a\u0300\u0300\u0316\u0345b", "  padded \u3000", "ABCdef GHI'Ll JKL's \u01c5x \u4e2dA\u4e2db",
    "\u0301Ab A\u0301B \u4e2d\u6587ABC abcDEF'S'T \u02b0A\u02b0", "'\u017f x'\u017f '\u017fx 'RE 'Ve 'lL", "a//b/\n/c!/\r\n/", "foo_bar(baz)[1]{2}; --x",
    "a\x05b\u4e2dc**d", "\x00x\x01\x05\u4e2d\u4e2d \u4e2dyz*", "\u4e2d\u6587*", "*",
]


def trained():
    from tokenizers import Tokenizer, models, trainers
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    root = gpt2_style.ROOT
    files = [f for pattern in ("docs/*.md", "tools/golden/*.py") for f in sorted(root.glob(pattern))]
    lines = [MARK + MARK.join(line.split(" ")) for f in files for line in f.read_text().splitlines()]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, show_progress=False, limit_alphabet=90,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return data | llama2()


def template(*tokens):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}] +
                      [{"SpecialToken": {"id": t, "type_id": 0}} for t in tokens[1:]],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [("<unk>", "<s>", "</s>").index(t)], "tokens": [t]} for t in tokens}}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def llama2():
    return {
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": MARK}, replace({"String": " "}, MARK)),
        "pre_tokenizer": None, "post_processor": template("<s>"),
        "decoder": sequence("decoders", replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                            {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    }


def character_variants(base):
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
    gemma = {"normalizer": replace({"String": " "}, MARK), "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
             "post_processor": template("<s>"),
             "decoder": sequence("decoders", replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"})}
    # Bytes of three-byte characters go, so that some characters fall back and others are unknown.
    vocab = base["model"]["vocab"]
    partial = {"vocab": {k: v for b in (0xE4, 0xF0) for k, v in ((f"<0x{b:02X}>", None), (f"unused{b}", vocab[f"<0x{b:02X}>"]))}}
    patches = {
        "llama2": {}, "gemma": gemma,
        "partial_bytes": {"model": partial}, "partial_bytes_apart": {"model": partial | {"fuse_unk": False}},
        "partial_bytes_dropped": {"model": partial | {"unk_token": None}},
        "no_fallback": {"model": {"byte_fallback": False}}, "no_fallback_apart": {"model": {"byte_fallback": False, "fuse_unk": False}},
        "no_unknown": {"model": {"byte_fallback": False, "unk_token": None}}, "whole_words": gemma | {"model": {"ignore_merges": True}},
        "eos_too": {"post_processor": template("<s>", "</s>")},
        "no_decoder": {"decoder": None}, "strip_tokens": {"decoder": {"type": "Strip", "content": MARK, "start": 1, "stop": 0}},
        "strip_both": {"decoder": sequence("decoders", replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                                           {"type": "Strip", "content": " ", "start": 2, "stop": 0}, replace({"String": "e"}, "E"))},
    }
    for scheme, cut in itertools.product(("first", "always", "never"), (True, False)):
        patches[f"metaspace_{scheme}_{'cut' if cut else 'whole'}"] = {
            "normalizer": None, "pre_tokenizer": metaspace | {"prepend_scheme": scheme, "split": cut},
            "decoder": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}}
    patches["metaspace_first_stripped"] = {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": False},
                                           "pre_tokenizer": metaspace | {"prepend_scheme": "first"}}
    return {name: {"base": "characters", "patch": patch} for name, patch in patches.items()}


def byte_variants(base):
    def cut(*steps, **more):
        return {"pre_tokenizer": sequence("pretokenizers", *steps, gpt2_style.BYTE_LEVEL | {"use_regex": False}), **more}

    patches = {"qwen": cut(split(Q), normalizer={"type": "NFC"}), "llama3": cut(split(L)), "o200k": cut(split(O)),
               "punctuation": cut(split(P)), "trimmed": {"post_processor": gpt2_style.BYTE_LEVEL},
               "trimmed_prefix": {"pre_tokenizer": {"add_prefix_space": True},
                                  "post_processor": sequence("processors", gpt2_style.BYTE_LEVEL | {"add_prefix_space": True})}}
    for behavior, invert in itertools.product(("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"), (False, True)):
        patches[f"{behavior}_{invert}"] = cut(split(r"[\s,.]", behavior, invert), split("a", behavior, invert, kind="String"))
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        patches[form] = {"normalizer": {"type": form}}
    patches["normalizers"] = {"normalizer": sequence(
        "normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKD"},
        replace({"Regex": r"\p{Mn}+"}, ""), {"type": "Lowercase"}, replace({"String": "th"}, "\u00fe"), {"type": "Prepend", "prepend": "> "})}
    # Without the bytes of some letters and marks, which have two-byte and one-byte spellings.
    vocab = base["model"]["vocab"]
    gone = {chr(c): None for c in (0x100, 0x101, 0x105, 0xE4, 0x2A)}
    patches["bytes_dropped"] = cut(split(L)) | {"model": {"vocab": gone | {f"unused{k}": vocab[k] for k in gone}, "merges": [
        m for m in base["model"]["merges"] if not set("".join(m)) & set(gone)]}}
    patches["words"] = cut({"type": "Whitespace"})
    patches["white_space"] = cut({"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False})
    return {name: {"base": "bytes", "patch": patch} for name, patch in patches.items()}


def byte_spans(text, offsets):
    places = [0, *itertools.accumulate(len(c.encode()) for c in text)]
    return [[places[begin], places[end]] for begin, end in offsets]


def case(tokenizer, text):
    encoding = tokenizer.encode(text, add_special_tokens=False)
    out = {"text": text, "ids": encoding.ids, "spans": byte_spans(text, encoding.offsets),
           "with_special": tokenizer.encode(text, add_special_tokens=True).ids}
    return out | decoded(tokenizer, encoding.ids)


def decoded(tokenizer, ids):
    return {"decoded": tokenizer.decode(ids, skip_special_tokens=False), "without_special": tokenizer.decode(ids, skip_special_tokens=True)}


def load(base, patch):
    import tokenizers
    return tokenizers.Tokenizer.from_str(json.dumps(gpt2_style.merge_patch(base, patch)))


# Runs of <0x..>: whole characters, halves of them, and what stands between.
BYTE_RUNS = ["e4b8ad", "e4b8", "e4b8ade4", "41", "ff41", "c3a9", "c3", "f09f9880", "f09f98", "20", "2041", "0a0a", "80"]


def byte_cases(tokenizer):
    token = tokenizer.token_to_id
    words = [token(MARK), token("the"), token("<s>"), token("a")]
    for i, run in enumerate(BYTE_RUNS):
        ids = [token(f"<0x{b:02X}>") for b in bytes.fromhex(run)]
        for row in (ids, [words[i % 4], *ids], [*ids, words[(i + 1) % 4], *ids], [words[0], words[0], *ids, words[0]]):
            row = [t for t in row if t is not None]
            yield {"ids": row} | decoded(tokenizer, row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--cases", action="store_true")
    args = parser.parse_args()
    folder = args.out / "styles"
    folder.mkdir(parents=True, exist_ok=True)
    if not args.cases:
        (folder / "characters.json").write_text(json.dumps(trained(), ensure_ascii=False, separators=(",", ":")))
    bases = {"characters": json.loads((folder / "characters.json").read_text()),
             "bytes": json.loads((args.out / "gpt2_style/tokenizer.json").read_text())}
    patches = character_variants(bases["characters"]) | byte_variants(bases["bytes"])
    (folder / "variants.json").write_text(json.dumps(patches, indent=1) + "\n")

    c = tokenizer_cases
    texts = list(dict.fromkeys(TEXTS + gpt2_style.FLAGS + c.CONTRACTIONS + c.SPACES + c.DIGITS + c.UNICODE + c.EMOJI + c.CODE + c.PROSE + c.random_texts(40)))
    rows = []
    for number, (name, variant) in enumerate(patches.items()):
        tokenizer = load(bases[variant["base"]], variant["patch"])
        # The variants take turns with the common texts, and see all of those written for them.
        for text in dict.fromkeys(TEXTS + texts[number % 24::24]):
            rows.append({"variant": name} | case(tokenizer, text))
        if variant["base"] == "characters":
            rows += [{"variant": name} | row for row in byte_cases(tokenizer)]
    gpt2_style.write_lines(folder / "cases.jsonl", rows)
    print(len(rows), "cases of", len(patches), "variants")


if __name__ == "__main__":
    main()
