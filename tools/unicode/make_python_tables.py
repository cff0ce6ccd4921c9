#!/usr/bin/env python3
"""Writes src/text/jinja/python_tables.h: what Python's str methods know about characters (isalpha, isprintable, upper ...).

  python3 tools/unicode/make_python_tables.py src/text/jinja/python_tables.h

Templates are rendered by Python elsewhere, so the tables are asked of Python itself. Python 3.11 wrote the committed file.
"""
import pathlib
import sys
import unicodedata

CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CLASSES = [("Printable", str.isprintable), ("Alpha", str.isalpha), ("Decimal", str.isdecimal), ("Digit", str.isdigit),
           ("Numeric", str.isnumeric), ("Lower", str.islower), ("Upper", str.isupper),
           ("Title", lambda c: unicodedata.category(c) == "Lt"),
           ("Mark", lambda c: unicodedata.category(c) in ("Mn", "Me", "Cf", "Lm", "Sk"))]


def ranges(member):
    """[first, last, step]: maximal runs, of every code (step 1) or of every second (step 2)."""
    codes = [c for c in CODES if member(chr(c))]
    found, i = [], 0
    while i < len(codes):
        for step in (1, 2):
            j = i
            while j + 1 < len(codes) and codes[j + 1] - codes[j] == step:
                j += 1
            if j > i + (step == 2):
                break
        else:
            j, step = i, 1
        found.append((codes[i], codes[j], step))
        i = j + 1
    return found


def mappings(convert):
    """Runs [first, last, step, delta] of characters that become one other, and the few that become several."""
    single, several = {}, []
    for c in CODES:
        to = convert(chr(c))
        if len(to) > 1:
            several.append((c, [ord(x) for x in to]))
        elif ord(to) != c:
            single[c] = ord(to) - c
    runs, codes, i = [], sorted(single), 0
    while i < len(codes):
        best = (i, 1)
        for step in (1, 2):
            j = i
            while j + 1 < len(codes) and codes[j + 1] - codes[j] == step and single[codes[j + 1]] == single[codes[i]]:
                j += 1
            best = max(best, (j, step), key=lambda pair: pair[0])
        runs.append((codes[i], codes[best[0]], best[1] if best[0] > i else 1, single[codes[i]]))
        i = best[0] + 1
    return runs, several


def table(name, kind, rows):
    text, line = f"inline constexpr {kind} k{name}[] = {{\n", "   "
    for row in rows:
        item = " {" + ", ".join(row) + "},"
        if len(line) + len(item) > 120:
            text, line = text + line + "\n", "   "
        line += item
    return text + line + "\n};\n"


def main(path):
    out = [f"""// What Python's str methods know about characters; made by tools/unicode/make_python_tables.py.
// Python {sys.version.split()[0]}, Unicode {unicodedata.unidata_version}.
#pragma once

#include <cstdint>

namespace lockstep::text::jinja::tables {{

struct Run {{  // first, first + step, ..., last
  uint32_t first, last, step;
}};
struct Mapping {{  // code -> code + delta
  uint32_t first, last, step;
  int32_t delta;
}};
struct Expansion {{  // code -> up to three codes, ended by 0
  uint32_t code, to[3];
}};

// clang-format off
"""]
    number = lambda value: f"0x{value:X}"
    for name, member in CLASSES:
        out.append(table(name, "Run", [(number(a), number(b), str(s)) for a, b, s in ranges(member)]))
    for name, convert in (("ToUpper", str.upper), ("ToLower", str.lower), ("ToTitle", str.title)):
        runs, several = mappings(convert)
        out.append(table(name, "Mapping", [(number(a), number(b), str(s), str(d)) for a, b, s, d in runs]))
        out.append(table(name + "Several", "Expansion",
                         [(number(c), "{" + ", ".join(map(number, to)) + "}") for c, to in several]))
    out.append("// clang-format on\n\n}  // namespace lockstep::text::jinja::tables\n")
    pathlib.Path(path).write_text("".join(out))


if __name__ == "__main__":
    main(sys.argv[1])
