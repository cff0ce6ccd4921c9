#!/usr/bin/env python3
"""Writes src/text/unicode_tables.h: the character classes that Hugging Face `tokenizers` uses, as ranges of code points.

  python tools/unicode/make_tables.py --out src/text/unicode_tables.h       (needs the package `tokenizers`)

The classes are asked of the library itself, code point by code point, because its regex engine (Oniguruma), the Rust
standard library and the Rust regex crate inside it each carry a Unicode version of their own, and none of them has to be
that of the PCRE2 or the Python on this machine:

  letter       \\p{L}  of a Split regex             (Oniguruma)
  number       \\p{N}  of a Split regex             (Oniguruma)
  white_space  \\s     of a Split regex             (Oniguruma), and of lstrip / rstrip of added tokens (regex crate)
  numeric      char::is_numeric in Digits          (Rust)
  word         \\w     in single_word of added tokens (regex crate)

The newest script whose letters each class knows is printed, which tells the Unicode version.
"""
import argparse
import pathlib
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
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


def version_of(members):
    known = set(members)
    return max((v for v, c in VERSION_SIGNS.items() if c in known), key=lambda v: tuple(map(int, v.split("."))), default="?")


def render(classes, library):
    lines = ["// Code point ranges of the character classes of Hugging Face `tokenizers`; made by tools/unicode/make_tables.py.",
             f"// tokenizers {library}; newest letters known: " +
             ", ".join(f"{name} Unicode {version_of(members)}" for name, members in classes.items() if name in ("letter", "word")) + ".",
             "#pragma once", "", "#include <cstdint>", "", "namespace lockstep::text::unicode {", "",
             "struct Range {", "  uint32_t first, last;", "};", ""]
    for name, members in classes.items():
        constant = "k" + "".join(part.capitalize() for part in name.split("_"))
        lines.append("// clang-format off")
        lines.append(f"inline constexpr Range {constant}[] = {{")
        row = "   "
        for first, last in ranges(members):
            item = f" {{0x{first:X}, 0x{last:X}}},"
            if len(row) + len(item) > 120:
                lines.append(row)
                row = "   "
            row += item
        lines += [row, "};", "// clang-format on", ""]
    lines += ["}  // namespace lockstep::text::unicode", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    import tokenizers
    classes = {
        "letter": split_class(r"\p{L}"),
        "number": split_class(r"\p{N}"),
        "white_space": split_class(r"\s"),
        "numeric": numeric_class(),
        "word": neighbour_class(lambda e: len(e.ids) == 0, single_word=True),
    }
    stripped = neighbour_class(lambda e: e.offsets[0][0] == 0, lstrip=True)
    assert stripped == classes["white_space"], "two kinds of white space"
    for name, members in classes.items():
        print(f"{name:12} {len(members):7} code points {len(ranges(members)):5} ranges   newest letters: {version_of(members)}")
    python = {c for c in CODE_POINTS if unicodedata.category(chr(c)).startswith("L")}
    print(f"letters here but not in Python's Unicode {unicodedata.unidata_version}:", len(set(classes["letter"]) - python))
    args.out.write_text(render(classes, tokenizers.__version__))


if __name__ == "__main__":
    main()
