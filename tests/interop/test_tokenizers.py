"""Ids, spans and decoded text beside the `tokenizers` library's, on real tokenizers and on small ones of every style."""
import itertools
import json
import lzma
import pathlib
import random
import sys

import pytest
import tokenizers

from conftest import ROOT
from tokenizer_texts import Texts, long_texts, of_code_points

sys.path.insert(0, str(ROOT / "tools/golden"))
import gpt2_style  # noqa: E402
import tokenizer_styles  # noqa: E402

BATCH = 50_000
REAL = ["qwen3", "llama3_1", "gptoss", "smollm2", "smollm2_digits", "arith"]
GOLDEN = ROOT / "tests/golden/tokenizer"
STYLES = json.loads((GOLDEN / "styles/variants.json").read_text())


def real_json(name, request):
    if name == "arith":
        return (ROOT / "models/arith/tokenizer.json").read_text()
    if name.startswith("smollm2"):
        text = (request.getfixturevalue("smollm2") / "tokenizer.json").read_text()
        published = json.loads((GOLDEN / "source.json").read_text())["published_pre_tokenizer"]
        return text if name == "smollm2" else json.dumps(json.loads(text) | {"pre_tokenizer": published})
    data = request.config.getoption("--test-data")
    if data is None:
        pytest.skip("no --test-data folder with tokenizers/ given")
    return lzma.decompress((pathlib.Path(data) / "tokenizers" / name / "tokenizer.json.xz").read_bytes()).decode()


def style_json(name):
    base = GOLDEN / {"characters": "styles/characters.json", "bytes": "gpt2_style/tokenizer.json"}[STYLES[name]["base"]]
    return json.dumps(gpt2_style.merge_patch(json.loads(base.read_text()), STYLES[name]["patch"]))


class Pair:
    """One tokenizer in both programs."""

    def __init__(self, lockstep, text, folder):
        self.lockstep, self.folder = lockstep, folder
        (folder / "tokenizer.json").write_text(text)
        self.theirs = tokenizers.Tokenizer.from_str(text)
        self.special = [t["content"] for t in json.loads(text)["added_tokens"]][:40] or ["x"]

    def run(self, command, rows, *flags):
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        with open(source, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        self.lockstep(command, "--hf-checkpoint", self.folder, "--input", source, "--input-key", next(iter(rows[0])), "--output", target, *flags)
        with open(target) as f:
            return [json.loads(line) for line in f]

    def check_texts(self, texts):
        rows = [{"text": text} for text in texts]
        ours = self.run("tokenize", rows)
        only_ids = self.run("tokenize", rows, "--ids-only", "--add-special-tokens")
        special = self.theirs.encode_batch_fast(texts, add_special_tokens=True)
        for text, mine, ids, theirs, with_special in zip(texts, ours, only_ids, self.theirs.encode_batch(texts, add_special_tokens=False), special,
                                                         strict=True):
            assert mine["ids"] == theirs.ids, ascii(text)
            assert ids["ids"] == with_special.ids, ascii(text)
            offsets = theirs.offsets
            spans = list(map(list, offsets)) if text.isascii() else tokenizer_styles.byte_spans(text, offsets)
            assert mine["spans"] == spans, ascii(text)

    def check_ids(self, lists):
        rows = [{"ids": ids} for ids in lists]
        for flags, skip in (((), False), (("--skip-special-tokens",), True)):
            ours = self.run("detokenize", rows, *flags)
            for ids, mine, theirs in zip(lists, ours, self.theirs.decode_batch(lists, skip_special_tokens=skip), strict=True):
                assert mine["text"] == theirs, ids


def batches(items):
    items = iter(items)
    while batch := list(itertools.islice(items, BATCH)):
        yield batch


def random_ids(pair, count, seed):
    """Most of them any token, some runs of special or last ones, some above the vocabulary."""
    rng = random.Random(seed)
    size = pair.theirs.get_vocab_size(with_added_tokens=True)

    def one():
        kind = rng.random()
        return rng.randrange(size) if kind < 0.9 else rng.randrange(min(size, 300)) if kind < 0.97 else rng.randrange(max(0, size - 300), size + 50)
    return [[one() for _ in range(rng.randint(1, 16))] for _ in range(count)]


@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers(lockstep, request, tmp_path, name):
    """The million: --tokenizer-texts for each, and every assigned code point in ten contexts."""
    pair = Pair(lockstep, real_json(name, request), tmp_path)
    checked = 0
    for batch in batches(of_code_points()):
        pair.check_texts(batch)
        checked += len(batch)
    texts = Texts(name, pair.special)
    for count in range(0, request.config.getoption("--tokenizer-texts"), BATCH):
        pair.check_texts(texts.take(BATCH))
        checked += BATCH
    for batch in batches(random_ids(pair, 100_000, name)):
        pair.check_ids(batch)
    pair.check_texts(long_texts())
    print(f"{name}: {checked} texts, 100000 lists of ids, 0 differences")


@pytest.mark.parametrize("name", STYLES)
def test_styles(lockstep, tmp_path, name):
    pair = Pair(lockstep, style_json(name), tmp_path)
    pair.check_texts(Texts(name, pair.special).take(10_000))
    # The library's Strip panics where it would strip more than there is.
    if "strip" not in name:
        pair.check_ids(random_ids(pair, 5_000, name))
