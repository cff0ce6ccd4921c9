#!/usr/bin/env python3
"""Writes src/text/unicode_classes.cpp and src/text/unicode_mappings.cpp: the character classes, normal forms and small
letters of Hugging Face `tokenizers`.

  python tools/unicode/make_tables.py --out src/text       (needs the package `tokenizers`)

Everything is asked of the library itself, code point by code point, because its regex engine (Oniguruma), the Rust
standard library, the Rust regex crate and the normalization crate inside it each carry a Unicode version of their own, and
none of them has to be that of the PCRE2 or the Python on this machine:

  categories    \\p{Lu}, \\p{Ll} ... of a Split regex    (Oniguruma)
  white_space   \\s     of a Split regex                (Oniguruma), and of lstrip / rstrip of added tokens (regex crate)
  word_regex    \\w     of a Split regex                (Oniguruma)
  numeric       char::is_numeric in Digits             (Rust)
  word          \\w     in single_word of added tokens  (regex crate)
  combining     order of marks in NFD                  (normalization crate)
  canonical, compatible, compositions                  NFD, NFKD, NFC (normalization crate)
  lowercase     Lowercase                              (Rust)

The newest script whose letters a class knows is printed, which tells its Unicode version. Python's own tables only name
one mark for each combining class, by which the library's classes are told apart.
"""
import argparse
import pathlib
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
HANGUL = range(0xAC00, 0xD7A4)  # composed and decomposed by arithmetic
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co").split()
# First letters of what a version of Unicode added; numbers where a version added only those.
VERSION_SIGNS = {"13.0": 0x10FB0, "14.0": 0x10570, "15.0": 0x11F04, "15.1": 0x2EBF0, "16.0": 0x105C0, "17.0": 0x16EA0}


def ranges(members):
    """Sorted code points -> [first, last] pairs."""
    out = []
    for c in members:
        if out and out[-1][1] + 1 == c:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def valued_ranges(values):
    """{code point: value} -> [first, last, value]."""
    out = []
    for c in sorted(values):
        if out and out[-1][1] + 1 == c and out[-1][2] == values[c]:
            out[-1][1] = c
        else:
            out.append([c, c, values[c]])
    return out


def split_class(regex):
    """Code points that `regex`, a class of one character, matches."""
    from tokenizers import Regex, pre_tokenizers
    splitter = pre_tokenizers.Split(Regex(regex), behavior="removed", invert=True)
    text = "".join(map(chr, CODE_POINTS))
    pieces = splitter.pre_tokenize_str(text)
    return sorted(CODE_POINTS[i] for _, (begin, end) in pieces for i in range(begin, end))


def numeric_class():
    from tokenizers import pre_tokenizers
    pieces = pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str("".join(map(chr, CODE_POINTS)))
    # The runs alternate, and "0" lies in the second.
    assert pieces[1][0].startswith("0")
    return [CODE_POINTS[i] for _, (begin, end) in pieces[1::2] for i in range(begin, end)]


def neighbour_class(member, **flags):
    """Code points c for which member(encoding of c followed by an added token with these flags)."""
    from tokenizers import AddedToken, Tokenizer, models
    tokenizer = Tokenizer(models.BPE())
    # The token ends and begins with characters of no class, so that only c decides.
    token = "<|probe|>"
    tokenizer.add_tokens([AddedToken(token, normalized=False, **flags)])
    found = []
    for begin in range(0, len(CODE_POINTS), 1 << 14):
        block = CODE_POINTS[begin:begin + (1 << 14)]
        encodings = tokenizer.encode_batch([chr(c) + token for c in block], add_special_tokens=False)
        found += [c for c, encoding in zip(block, encodings) if member(encoding)]
    return found


def categories():
    """{code point: category}; together they are \\p{L} and \\p{N} too."""
    values = {}
    for name in CATEGORIES:
        for c in split_class(rf"\p{{{name}}}"):
            assert c not in values
            values[c] = name
    for group in "LNMPSZ":
        assert split_class(rf"\p{{{group}}}") == sorted(c for c, name in values.items() if name[0] == group), group
    return values


class NormalForms:
    """Canonical and compatible decompositions, combining classes and pairs that compose."""

    def __init__(self):
        from tokenizers import normalizers
        self.nfc, self.nfd, self.nfkd = (getattr(normalizers, form)().normalize_str for form in ("NFC", "NFD", "NFKD"))
        simple = [c for c in CODE_POINTS if c not in HANGUL]
        # One mark of every class that the library knows; the class of a mark never changes between versions of Unicode.
        self.marks, lowest = {1: "\u0334"}, "\u0334"
        for c in simple:
            if self.reorders(chr(c) + lowest) and unicodedata.combining(chr(c)):
                self.marks.setdefault(unicodedata.combining(chr(c)), chr(c))
        self.highest = self.marks[max(self.marks)]
        self.canonical = {c: self.nfd(chr(c)) for c in simple if self.nfd(chr(c)) != chr(c)}
        self.compatible = {c: text for c in simple if (text := self.nfkd(chr(c))) != self.nfd(chr(c))}
        self.combining = {c: k for c in simple if c not in self.canonical and (k := self.combining_class(chr(c)))}
        self.compositions = sorted(self.pairs())

    def reorders(self, text):
        return self.nfd("a" + text) != "a" + text

    def combining_class(self, char):
        if not self.reorders(char + self.marks[1]) and not self.reorders(self.highest + char):
            return 0
        same = [k for k, mark in self.marks.items() if not self.reorders(char + mark) and not self.reorders(mark + char)]
        assert len(same) == 1, (char, same)
        return same[0]

    def pairs(self):
        for c, text in self.canonical.items():
            if self.nfc(text) != chr(c):
                continue  # excluded from composition
            first, second = self.nfc(text[:-1]), text[-1]
            assert len(first) == 1 and self.nfc(first + second) == chr(c), hex(c)
            yield ord(first), ord(second), c

    def unsafe_for_nfc(self):
        """What NFC may change or move, alone or behind another character. Text without any of these is NFC."""
        jamo = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
        seconds = {second for _, second, _ in self.compositions}
        changed = {c for c, text in self.canonical.items() if self.nfc(chr(c)) != chr(c)}
        # A composed character can lose its last mark to one that comes before it in order; that mark is unsafe itself.
        return sorted(jamo | seconds | changed | set(self.combining))


def lowercase():
    from tokenizers import normalizers
    lower = normalizers.Lowercase().normalize_str
    return {c: text for c in CODE_POINTS if (text := lower(chr(c))) != chr(c)}


def version_of(members):
    known = set(members)
    return max((v for v, c in VERSION_SIGNS.items() if c in known), key=lambda v: tuple(map(int, v.split("."))), default="?")


def table(kind, name, items):
    """The definition of `const Span<const kind> name` with these initializers."""
    lines = [f"constexpr {kind} {name}_[] = {{"]
    row = "   "
    for item in items:
        if len(row) + len(item) > 118:
            lines.append(row)
            row = "   "
        row += f" {item},"
    return lines + [row, "};", ""], f"const std::span<const {kind}> {name} = {name}_;"


def braces(numbers):
    return "{" + ", ".join(n if isinstance(n, str) else f"0x{n:X}" for n in numbers) + "}"


def mapping_tables(name, mapping):
    """{code point: text} as rows (code point, where its text begins in a pool, its length) and the pool."""
    pool, rows = [], []
    for c in sorted(mapping):
        rows.append(braces([c, str(len(pool)), str(len(mapping[c]))]))
        pool += map(ord, mapping[c])
    return [table("Mapping", f"k{name}", rows), table("uint32_t", f"k{name}Text", [f"0x{c:X}" for c in pool])]


def render(tables, library, note):
    lines = [f"// Made by tools/unicode/make_tables.py from tokenizers {library}{note}; not to be edited.",
             '#include "text/unicode.h"', "", "namespace lockstep::text::unicode {", "", "// clang-format off", "namespace {"]
    lines += [line for body, _ in tables for line in body]
    lines += ["}  // namespace", ""] + [definition for _, definition in tables]
    return "\n".join(lines + ["// clang-format on", "", "}  // namespace lockstep::text::unicode", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    import tokenizers
    by_category = categories()
    letters = sorted(c for c, name in by_category.items() if name[0] == "L")
    classes = {"white_space": split_class(r"\s"), "word_regex": split_class(r"\w"), "numeric": numeric_class(),
               "word": neighbour_class(lambda e: len(e.ids) == 0, single_word=True)}
    stripped = neighbour_class(lambda e: e.offsets[0][0] == 0, lstrip=True)
    assert stripped == classes["white_space"], "two kinds of white space"
    forms = NormalForms()
    for name, members in (classes | {"letters": letters}).items():
        print(f"{name:12} {len(members):7} code points {len(ranges(members)):5} ranges   newest letters: {version_of(members)}")
    print(f"normal forms: {len(forms.canonical)} canonical, {len(forms.compatible)} compatible, {len(forms.combining)} "
          f"combining, {len(forms.compositions)} compositions")

    def constant(name):
        return "k" + "".join(part.capitalize() for part in name.split("_"))
    tables = [table("CategoryRange", "kCategories",
                    [braces([first, last, f"Category::{name}"]) for first, last, name in valued_ranges(by_category)])]
    tables += [table("Range", constant(name), map(braces, ranges(members))) for name, members in classes.items()]
    (args.out / "unicode_classes.cpp").write_text(
        render(tables, tokenizers.__version__, f" (letters of Unicode {version_of(letters)})"))
    tables = [table("ClassRange", "kCombining", [braces([a, b, str(k)]) for a, b, k in valued_ranges(forms.combining)]),
              table("Composition", "kCompositions", map(braces, forms.compositions)),
              table("Range", "kUnsafeForNfc", map(braces, ranges(forms.unsafe_for_nfc())))]
    for name, mapping in (("Canonical", forms.canonical), ("Compatible", forms.compatible), ("Lowercase", lowercase())):
        tables += mapping_tables(name, mapping)
    (args.out / "unicode_mappings.cpp").write_text(render(tables, tokenizers.__version__, ""))


if __name__ == "__main__":
    main()
