#!/usr/bin/env python3
"""Writes Parquet files as pyarrow, pandas, Hugging Face datasets and old writers leave them, and the rows they hold.

  python tools/golden/parquet_cases.py --out tests/golden/parquet
  (then tools/golden/make_goldens.py --manifest records the files in MANIFEST.json)

  NAME.parquet, NAME.jsonl   a file and its rows as Lockstep shows them (src/data/parquet/convert.h), from pyarrow's own reading;
                             files chat_* share chat.jsonl, files types_* share types.jsonl
  errors.json                {"NAME.parquet": words of the error}: files that no row can be had from
tests/interop/test_datasets.py draws its random tables from here.
"""
import argparse
import base64
import datetime
import decimal
import json
import math
import pathlib
import random
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20240607
EPOCH = datetime.datetime(1970, 1, 1)
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


# --- rows as Lockstep shows them -------------------------------------------------------------------------------------

def clock_text(units, unit):
    """Units since midnight or since 1970 as (text of the day, text of the time)."""
    per_day = 86400 * UNITS[unit]
    days, rest = divmod(units, per_day)
    nanos = rest * (10**9 // UNITS[unit])
    seconds, fraction = divmod(nanos, 10**9)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction % 1000:
        text += f".{fraction:09}"
    elif fraction:
        text += f".{fraction // 1000:06}"
    return (EPOCH + datetime.timedelta(days=days)).date().isoformat(), text


def key_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def shown(scalar):
    """One pyarrow scalar as JSON."""
    t = scalar.type
    if isinstance(t, pa.UuidType):
        return None if not scalar.is_valid else str(scalar.as_py())
    if isinstance(t, pa.BaseExtensionType):
        return shown(scalar.value)
    if pa.types.is_dictionary(t):
        return shown(scalar.cast(t.value_type)) if scalar.is_valid else None
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(t):
        return {field.name: shown(scalar[i]) for i, field in enumerate(t)}
    if pa.types.is_map(t):
        pairs = scalar.values
        return {key_text(shown(pair["key"])): shown(pair["value"]) for pair in pairs} if pairs is not None else {}
    if pa.types.is_nested(t):
        return [shown(item) for item in scalar.values]
    if pa.types.is_timestamp(t):
        return "T".join(clock_text(scalar.value, t.unit)) + ("+00:00" if t.tz else "")
    if pa.types.is_time(t):
        return clock_text(scalar.value, t.unit)[1]
    if pa.types.is_date(t):
        return scalar.as_py().isoformat()
    if pa.types.is_duration(t):
        return scalar.value
    value = scalar.as_py()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def rows_of(table):
    columns = {name: [shown(item) for item in table.column(name)] for name in table.column_names}
    return [{name: column[i] for name, column in columns.items()} for i in range(table.num_rows)]


# --- random tables ---------------------------------------------------------------------------------------------------

LEAVES = [pa.string(), pa.large_string(), pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(),
          pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.binary(), pa.binary(5),
          pa.date32(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("ms"), pa.timestamp("us"),
          pa.timestamp("ns"), pa.timestamp("us", tz="UTC"), pa.decimal128(9, 2), pa.decimal128(18, 0), pa.decimal128(38, 10),
          pa.decimal256(60, 30), pa.null(), pa.uuid(), pa.dictionary(pa.int32(), pa.string()), pa.duration("us")]
ALPHABETS = ["ab", "abcdefghijklmnopqrstuvwxyz ", "\u00e9\u00e0\u4e16\u754c\U0001f600\n\"\\\x00\x7f\u2028"]


def random_type(rng, depth, top=True):
    kind = rng.random()
    if depth == 0 or kind < 0.55:
        return rng.choice([t for t in LEAVES if top or t != pa.uuid()])  # pyarrow makes no lists of extension types
    if kind < 0.75:
        item = random_type(rng, depth - 1, False)
        how = rng.random()
        if how < 0.15 and not pa.types.is_null(item):
            return pa.large_list(item)
        return pa.list_(item, 2) if how < 0.25 else pa.list_(item)
    if kind < 0.92:
        return pa.struct([random_field(rng, f"f{i}", depth - 1, False) for i in range(rng.randint(1, 4))])
    return pa.map_(rng.choice([pa.string(), pa.int32(), pa.string()]), random_type(rng, depth - 1, False))


def random_field(rng, name, depth, top=True):
    t = random_type(rng, depth, top)
    return pa.field(name, t, nullable=pa.types.is_null(t) or rng.random() < 0.8)


def random_text(rng):
    how = rng.random()
    if how < 0.1:
        return ""
    return "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randint(1, 5) if how < 0.7 else rng.randint(1, 60)))


def random_leaf(rng, t):
    if pa.types.is_dictionary(t):
        return rng.choice(["red", "green", "blue"])
    if isinstance(t, pa.UuidType):
        return rng.randbytes(16)
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return random_text(rng)
    if pa.types.is_boolean(t):
        return rng.random() < 0.5
    if pa.types.is_integer(t):
        low = -2**(t.bit_width - 1) if pa.types.is_signed_integer(t) else 0
        high = low + 2**t.bit_width - 1
        return rng.choice([low, high, 0, max(low, -1), rng.randint(low, high), rng.randint(0, 100), rng.randint(0, 100)])
    if pa.types.is_float16(t):
        return struct.unpack("<e", struct.pack("<H", rng.randrange(1 << 16)))[0]
    if pa.types.is_floating(t):
        value = rng.choice([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, rng.gauss(0, 1), rng.gauss(0, 1) * 10.0**rng.randint(-30, 30)])
        return struct.unpack("<f", struct.pack("<f", value))[0] if t.bit_width == 32 else value
    if pa.types.is_fixed_size_binary(t):
        return rng.randbytes(t.byte_width)
    if pa.types.is_binary(t):
        return rng.randbytes(rng.randint(0, 9))
    if pa.types.is_date(t):
        return rng.randint(-719162, 2932896)
    if pa.types.is_time(t):
        return rng.choice([0, rng.randrange(86400 * UNITS[t.unit]), rng.randrange(86400) * UNITS[t.unit]])
    if pa.types.is_timestamp(t):
        most = {"ms": 2.5e14, "us": 2.5e17, "ns": 9.2e18}[t.unit]
        low = -6.2e13 * UNITS[t.unit] / 1000 if t.unit != "ns" else -9.2e18
        return rng.choice([0, -1, int(rng.uniform(low, most)), rng.randrange(4_000_000_000) * UNITS[t.unit]])
    if pa.types.is_duration(t):
        return rng.randint(-10**12, 10**12)
    if pa.types.is_decimal(t):
        digits = rng.randint(1, t.precision)
        return decimal.Decimal(rng.randint(-10**digits + 1, 10**digits - 1)).scaleb(-t.scale, decimal.Context(prec=80))
    raise AssertionError(t)


def random_value(rng, t, null_rate, nullable=True):
    if pa.types.is_null(t) or (nullable and rng.random() < null_rate):
        return None
    if pa.types.is_struct(t):
        return {f.name: random_value(rng, f.type, null_rate, f.nullable) for f in t}
    if pa.types.is_map(t):
        keys = {random_leaf(rng, t.key_type) for _ in range(rng.choice([0, 1, 2, 5]))}
        return [(key, random_value(rng, t.item_type, null_rate)) for key in sorted(keys)]
    if pa.types.is_fixed_size_list(t):
        return [random_value(rng, t.value_type, null_rate) for _ in range(t.list_size)]
    if pa.types.is_nested(t):
        return [random_value(rng, t.value_type, null_rate) for _ in range(rng.choice([0, 1, 2, 3, 12]))]
    return random_leaf(rng, t)


def runs(rng, values):
    """Some columns repeat their values: run lengths and dictionaries have something to do."""
    if rng.random() < 0.6 or not values:
        return values
    few = values[:rng.randint(1, 4)]
    return [rng.choice(few) for _ in values] if rng.random() < 0.5 else [few[i * len(few) // len(values)] for i in range(len(values))]


def random_table(rng, most_rows=120):
    fields = [random_field(rng, f"c{i}", rng.choice([0, 0, 1, 2, 3])) for i in range(rng.randint(1, 5))]
    rows = rng.choice([1, 2, 7, rng.randint(1, most_rows), rng.randint(1, most_rows)])
    columns = []
    for field in fields:
        rate = rng.choice([0, 0.1, 0.5, 1.0])
        columns.append(pa.array(runs(rng, [random_value(rng, field.type, rate, field.nullable) for _ in range(rows)]), field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def leaf_paths(t, path):
    if isinstance(t, pa.BaseExtensionType):
        yield path, t.storage_type
    elif pa.types.is_struct(t):
        for f in t:
            yield from leaf_paths(f.type, f"{path}.{f.name}")
    elif pa.types.is_map(t):
        yield from leaf_paths(t.key_type, path + ".key_value.key")
        yield from leaf_paths(t.item_type, path + ".key_value.value")
    elif pa.types.is_nested(t):
        yield from leaf_paths(t.value_type, path + ".list.element")
    else:
        yield path, t


def encodings_of(t):
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_binary(t):
        return ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
    if pa.types.is_integer(t) or pa.types.is_duration(t):
        return ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
    if pa.types.is_timestamp(t) or pa.types.is_time(t) or pa.types.is_date(t):
        return ["PLAIN", "DELTA_BINARY_PACKED"]
    if pa.types.is_floating(t):
        return ["PLAIN", "BYTE_STREAM_SPLIT"]
    if pa.types.is_fixed_size_binary(t):
        return ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]
    return ["PLAIN"]


def random_options(rng, table):
    options = {"compression": rng.choice(["none", "snappy", "gzip", "zstd"]), "data_page_version": rng.choice(["1.0", "2.0"]),
               "version": rng.choice(["1.0", "2.4", "2.6", "2.6"]), "row_group_size": rng.choice([3, 10, 1000, 1000]),
               "data_page_size": rng.choice([1, 64, 1 << 20]), "write_batch_size": rng.choice([1, 7, 1024]),
               "write_statistics": rng.random() < 0.5, "write_page_checksum": rng.random() < 0.3,
               "store_schema": rng.random() < 0.5, "write_page_index": rng.random() < 0.3,
               "store_decimal_as_integer": rng.random() < 0.3}
    if rng.random() < 0.5:
        options["use_dictionary"] = True
        options["dictionary_pagesize_limit"] = rng.choice([16, 1 << 20])
    else:
        options["use_dictionary"] = False
        paths = [leaf for field in table.schema for leaf in leaf_paths(field.type, field.name)]
        options["column_encoding"] = {path: rng.choice(encodings_of(t)) for path, t in paths}
    return options


def write(path, table, options):
    """False: pyarrow itself cannot write this table so."""
    try:
        pq.write_table(table, path, **options)
        return True
    except (pa.ArrowException, OSError):
        return False


# --- files of old writers, byte by byte ------------------------------------------------------------------------------

def varint(n):
    out = b""
    while True:
        out += bytes([n & 127 | (128 if n > 127 else 0)])
        n >>= 7
        if not n:
            return out


def thrift(fields):
    """Compact protocol: [(id, kind, value)]; kinds i32, i64, str, bool, struct (fields), list (kind, values)."""
    codes = {"i32": 5, "i64": 6, "str": 8, "list": 9, "struct": 12}
    zigzag = lambda n: varint((n << 1) ^ (n >> 63))

    def value(kind, v):
        if kind in ("i32", "i64"):
            return zigzag(v)
        if kind == "str":
            v = v.encode() if isinstance(v, str) else v
            return varint(len(v)) + v
        if kind == "struct":
            return thrift(v)
        item, values = v
        return bytes([len(values) << 4 | codes[item]]) + b"".join(value(item, x) for x in values)

    out, last = b"", 0
    for number, kind, v in fields:
        code = (1 if v else 2) if kind == "bool" else codes[kind]
        out += bytes([(number - last) << 4 | code]) + (b"" if kind == "bool" else value(kind, v))
        last = number
    return out + b"\0"


def element(name, physical=None, repetition=None, children=None, converted=None):
    fields = [(1, "i32", physical), (3, "i32", repetition), (4, "str", name), (5, "i32", children), (6, "i32", converted)]
    return [f for f in fields if f[2] is not None]


INT32, BYTE_ARRAY = 1, 6
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
UTF8, MAP, MAP_KEY_VALUE, LIST = 0, 1, 2, 3


def hybrid(values, width):
    """Levels as bit-packed groups, with their length before them; nothing where there is one level only."""
    if width == 0:
        return b""
    values = values + [0] * (-len(values) % 8)
    packed = sum(v << (i * width) for i, v in enumerate(values)).to_bytes(len(values) * width // 8, "little")
    runs = varint(len(values) // 8 << 1 | 1) + packed
    return struct.pack("<I", len(runs)) + runs


def plain(values):
    return b"".join(struct.pack("<i", v) if isinstance(v, int) else struct.pack("<I", len(v)) + v.encode() for v in values)


def column(levels_r, levels_d, max_r, max_d, values, crc=False):
    width = lambda n: n.bit_length()
    body = hybrid(levels_r, width(max_r)) + hybrid(levels_d, width(max_d)) + plain(values)
    check = [(4, "i32", struct.unpack("<i", struct.pack("<I", zlib.crc32(body)))[0])] if crc else []
    header = thrift([(1, "i32", 0), (2, "i32", len(body)), (3, "i32", len(body)), *check,
                     (5, "struct", [(1, "i32", len(levels_d)), (2, "i32", 0), (3, "i32", 3), (4, "i32", 3)])])
    return header + body, len(levels_d), INT32 if values and isinstance(values[0], int) else BYTE_ARRAY


def old_file(elements, num_rows, columns, magic=b"PAR1", extra=()):
    """columns: [(bytes, num_values, physical)], uncompressed, in one row group."""
    out, chunks = magic, []
    for body, count, physical in columns:
        chunks.append([(2, "i64", len(out)), (3, "struct", [
            (1, "i32", physical), (2, "list", ("i32", [0, 3])), (3, "list", ("str", ["x"])), (4, "i32", 0), (5, "i64", count),
            (6, "i64", len(body)), (7, "i64", len(body)), (9, "i64", len(out))])])
        out += body
    footer = thrift([(1, "i32", 1), (2, "list", ("struct", elements)), (3, "i64", num_rows), (4, "list", ("struct", [
        [(1, "list", ("struct", chunks)), (2, "i64", len(out)), (3, "i64", num_rows)]])), (6, "str", "written by hand"), *extra])
    return out + footer + struct.pack("<I", len(footer)) + magic


def old_files():
    list_of = lambda name, children=1: element(name, None, OPTIONAL, children, LIST)
    # [1, 2], [], None, [3]: the repeated field is the item.
    levels = ([0, 1, 0, 0, 0], [2, 2, 1, 0, 2], 1, 2)
    yield "old_two_level_list", old_file([element("schema", None, None, 1), list_of("a"), element("array", INT32, REPEATED)],
                                         4, [column(*levels, [1, 2, 3])])
    # A repeated group of one field that is the item itself: "array", or the list's name and "_tuple".
    for group in ("array", "a_tuple"):
        yield f"old_list_of_{group}", old_file(
            [element("schema", None, None, 1), list_of("a"), element(group, None, REPEATED, 1), element("str", BYTE_ARRAY, REQUIRED, None, UTF8)],
            4, [column(*levels, ["x", "y", "z"])])
    # A repeated group of two fields is the item.
    yield "old_list_of_structs", old_file(
        [element("schema", None, None, 1), list_of("a"), element("element", None, REPEATED, 2),
         element("role", BYTE_ARRAY, REQUIRED, None, UTF8), element("n", INT32, OPTIONAL)],
        4, [column(*levels, ["x", "y", "z"]), column([0, 1, 0, 0, 0], [3, 2, 1, 0, 3], 1, 3, [7, 9])])
    # Any other repeated group of one field: three levels.
    yield "old_list_bag", old_file(
        [element("schema", None, None, 1), list_of("a"), element("bag", None, REPEATED, 1), element("array_element", INT32, OPTIONAL)],
        4, [column([0, 1, 0, 0, 0], [3, 2, 1, 0, 3], 1, 3, [1, 3])])
    # Repeated without an annotation.
    yield "old_repeated", old_file(
        [element("schema", None, None, 2), element("id", INT32, REQUIRED), element("a", BYTE_ARRAY, REPEATED, None, UTF8)],
        3, [column([], [0] * 3, 0, 0, [1, 2, 3], crc=True), column([0, 0, 1, 1, 0], [0, 1, 1, 1, 1], 1, 1, ["p", "q", "r", "s"], crc=True)])
    # A map with the annotations swapped, and a list of lists in two levels.
    yield "old_map", old_file(
        [element("schema", None, None, 1), element("m", None, OPTIONAL, 1, MAP_KEY_VALUE), element("map", None, REPEATED, 2),
         element("key", BYTE_ARRAY, REQUIRED, None, UTF8), element("value", INT32, OPTIONAL)],
        3, [column([0, 1, 0, 0], [2, 2, 1, 0], 1, 2, ["a", "b"]), column([0, 1, 0, 0], [3, 2, 1, 0], 1, 3, [5])])


# --- the committed files ---------------------------------------------------------------------------------------------

def chat_table(rows=40):
    rng = random.Random(SEED)
    turn = lambda role: {"role": role, "content": random_text(rng)}
    data = [{"id": i, "messages": [turn("system")] * (i % 3 == 0) + [turn("user"), turn("assistant")] * (i % 4),
             "tools": None if i % 2 else [{"name": "f", "tags": ["a", None]}], "score": None if i % 5 == 0 else i / 7,
             "label": str(i)} for i in range(rows)]
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.Table.from_pylist(data, pa.schema([("id", pa.int64()), ("messages", pa.list_(message)),
                                                 ("tools", pa.list_(pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))]))),
                                                 ("score", pa.float32()), ("label", pa.string())]))


def every_type(rows=16):
    rng = random.Random(SEED + 1)
    fields = [pa.field(f"c{i}_" + "".join(c if c.isalnum() else "_" for c in str(t)), t) for i, t in enumerate(dict.fromkeys(LEAVES))]
    return pa.Table.from_arrays([pa.array([random_value(rng, f.type, 0.2) for _ in range(rows)], f.type) for f in fields],
                                schema=pa.schema(fields))


def pyarrow_files():
    chat = chat_table()
    for codec in ("none", "snappy", "gzip", "zstd"):
        for page in ("1.0", "2.0"):
            yield f"chat_{codec}_v{page[0]}", chat, {"compression": codec, "data_page_version": page, "row_group_size": 15,
                                                     "data_page_size": 200, "write_batch_size": 8}
    features = {"info": {"features": {"id": {"dtype": "int64", "_type": "Value"}, "label": {"dtype": "string", "_type": "Value"}}}}
    yield "hugging_face", chat.select(["id", "label"]).replace_schema_metadata({"huggingface": json.dumps(features)}), \
        {"store_schema": True, "write_page_index": True, "use_content_defined_chunking": True, "row_group_size": 1000}
    index = chat.select(["label", "score"]).append_column("__index_level_0__", pa.array(range(40), pa.int64()))
    yield "pandas", index.replace_schema_metadata({"pandas": json.dumps({"index_columns": ["__index_level_0__"]})}), {"store_schema": True}
    types = every_type()
    yield "types_dictionary", types, {"version": "2.6", "data_page_version": "2.0"}
    yield "types_plain", types, {"version": "2.6", "use_dictionary": False, "write_page_checksum": True, "compression": "gzip"}
    encodings = {path: encodings_of(t)[1] for f in types.schema for path, t in leaf_paths(f.type, f.name) if len(encodings_of(t)) > 1}
    yield "types_delta", types, {"use_dictionary": False, "column_encoding": encodings, "data_page_version": "2.0"}
    encodings = {path: encodings_of(t)[-1] for f in types.schema for path, t in leaf_paths(f.type, f.name)}
    yield "types_split", types, {"use_dictionary": False, "column_encoding": encodings}
    times = types.select([i for i, f in enumerate(types.schema) if pa.types.is_timestamp(f.type) and f.type.unit == "ns"])
    yield "int96", times, {"use_deprecated_int96_timestamps": True}
    words = pa.table({"word": pa.array([f"word {i}" for i in range(300)] + ["same"] * 500)})
    yield "dictionary_too_large", words, {"dictionary_pagesize_limit": 1000, "write_batch_size": 50, "data_page_size": 300}
    deep = pa.array([[[["a", None], []], None, []], None, [], [[None, ["b"]], [["c", "d"]]]], pa.list_(pa.list_(pa.list_(pa.string()))))
    maps = pa.array([[("k", [{"x": 1}]), ("l", None)], [], None, [("m", [])]], pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int16())]))))
    yield "nested", pa.table({"deep": deep, "maps": maps}), {"data_page_size": 1, "write_batch_size": 1}
    yield "no_rows_in_a_group", pa.table({"a": pa.array([], pa.string())}), {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    written = {}

    def record(name):
        rows = "".join(json.dumps(row) + "\n" for row in rows_of(pq.read_table(out / f"{name}.parquet")))
        shared = name.split("_")[0]
        name = shared if shared in ("chat", "types") else name
        assert written.setdefault(name, rows) == rows, name
        (out / f"{name}.jsonl").write_text(rows)

    for name, table, options in pyarrow_files():
        pq.write_table(table, out / f"{name}.parquet", **{"compression": "snappy", "store_schema": False, "write_statistics": False, **options})
        record(name)
    for name, content in old_files():
        (out / f"{name}.parquet").write_bytes(content)
        record(name)
    errors = {}
    small = pa.table({"text": ["a", "b"]})
    for codec in ("brotli", "lz4"):
        pq.write_table(small, out / f"codec_{codec}.parquet", compression=codec, store_schema=False)
        errors[f"codec_{codec}.parquet"] = ["codec that is not available", "column text", codec.upper()]
    one = [element("schema", None, None, 1), element("a", INT32, REQUIRED)]
    (out / "encrypted_footer.parquet").write_bytes(old_file(one, 1, [column([], [0], 0, 0, [1])], b"PARE"))
    errors["encrypted_footer.parquet"] = ["an encrypted Parquet file"]
    (out / "encrypted_columns.parquet").write_bytes(old_file(one, 1, [column([], [0], 0, 0, [1])], extra=[(8, "struct", [(1, "struct", [])])]))
    errors["encrypted_columns.parquet"] = ["an encrypted Parquet file"]
    (out / "errors.json").write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main()
