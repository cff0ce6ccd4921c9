"""Parquet files that pyarrow writes hold the same rows here: random schemas, values and writer options, and GSM8K.

The rows are those of `lockstep inspect FILE --rows N`, one JSON object a line.
"""
import gzip
import json
import lzma
import os
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/golden"))
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
import parquet_cases as cases  # noqa: E402

CHUNKS, FILES = 10, 100  # files of random tables, in so many tests


def rows_shown(lockstep, path, count=1_000_000):
    return [json.loads(line) for line in lockstep("inspect", path, "--rows", count).split("\n") if line.startswith("{")]


def same(got, want):
    # As text: the order of the keys counts, and so does 1 or 1.0.
    return [json.dumps(row) for row in got] == [json.dumps(row) for row in want]


def read_back(path, table):
    # pyarrow 26 writes some structs and lists of nothing but nulls that it cannot read, or reads as no rows.
    try:
        back = pq.read_table(path)
    except (pa.ArrowInvalid, OSError):
        return table
    return back if back.num_rows == table.num_rows else table


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_tables(lockstep, tmp_path, chunk):
    rng = random.Random(cases.SEED + chunk)
    compared = 0
    while compared < FILES:
        table = cases.random_table(rng)
        options = cases.random_options(rng, table)
        path = tmp_path / "table.parquet"
        if not cases.write(path, table, options):
            continue
        want = cases.rows_of(read_back(path, table))
        got = rows_shown(lockstep, path)
        assert same(got, want), (compared, table.schema, options, next((g, w) for g, w in zip(got, want) if not same([g], [w])))
        begin, end = sorted(rng.choices(range(-len(want), len(want) + 1), k=2))
        if want[begin:end]:
            assert same(rows_shown(lockstep, f"{path}@[{begin}:{end}]"), want[begin:end]), (begin, end)
        compared += 1


@pytest.fixture(scope="module")
def gsm8k():
    root = os.environ.get("LOCKSTEP_TEST_DATA")
    if not root:
        pytest.skip("LOCKSTEP_TEST_DATA is not set: no GSM8K")
    return pathlib.Path(root) / "data/gsm8k/train.jsonl.xz"


def test_gsm8k_in_every_form(lockstep, tmp_path, gsm8k):
    text = lzma.open(gsm8k, "rt", encoding="utf-8").read()
    want = [json.loads(line) for line in text.splitlines()]
    assert len(want) == 7473
    pq.write_table(pa.Table.from_pylist(want), tmp_path / "train.parquet")
    pq.write_table(pa.Table.from_pylist(want), tmp_path / "groups.parquet", row_group_size=1000, compression="zstd",
                   data_page_version="2.0")
    (tmp_path / "list.json").write_text(json.dumps(want, indent=2))
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for path in (gsm8k, *sorted(tmp_path.iterdir())):
        assert same(rows_shown(lockstep, path), want), path
        assert same(rows_shown(lockstep, f"{path}@[-1000:-990]"), want[-1000:-990]), path
