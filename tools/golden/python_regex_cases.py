#!/usr/bin/env python3
"""Writes what Python's `re` makes of patterns: which texts they match, or that they are refused.

  python3.11 tools/golden/python_regex_cases.py --out tests/golden/python_regex.json
  (then tools/golden/make_goldens.py --manifest records the file in MANIFEST.json)

  {"texts": [...], "cases": [[pattern, [places of the texts that fullmatch matches], [those that match matches]] | [pattern]]}
A pattern alone is one that re.compile refuses. After the written ones come random ones, put together from pieces of the grammar.
"""
import argparse
import json
import random
import re
import warnings

SEED = 16
NUM_RANDOM = 1500

# One a line: modules as people choose them, then the grammar construct by construct, then what Python refuses.
PATTERNS = r"""
.*\.(q|v)_proj
model\.layers\.\d+\.self_attn\.(q|k|v)_proj
.*\.(?:[0-9]|1[0-5])\..*proj
(?P<a>x|y)(?P=a)
(?P<a>x|y)\1
(a)?(?(1)b|c)
(?P<a>a)?(?(a)b|c)
a$
a\Z
^a
\Aa\Z
\ba\b
(?i)AB
(?i:a)b
(?-i:a)b
(?s).
.
(?s-i:.)a
(?i-s:.)A
(?u)a
(?i)(?s)a.
a{,2}
a{2}
a{1,}
a{,}
a{}
a{x}
a{1
a{ 1}
{a}
a{1,2}?b
a{1,2}+a
a*+a
a++b
a?+a
(?>a*)a
\v
[\v]
\x41
\u0041
\U00000041
\101
\07
\0
[\101]
[\b]
\a\f\n\r\t
\.
\é
\-
[a\-z]
[]a]
[^]a]
[[a]
[a[:alpha:]]
[a-]
[-a]
[\d-]
[\s\S]
[^\s]
\s
\S
\d\D\w\W
[&&a]
[a--b]
(?#comment)a
a(?#comment)*
(?=a)a
(?!b)a
(?<=a)b
a(?<=a)b
a(?<!b)b
(?=a)*a
(?:)*a
()a
a|b|
|a
a||b
(a|b)*c
é+
[à-ü]
#a
 a b
}
]
(.*\.)?(q_proj)$
(.*\.)?(a)|(b)$
(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)
a\\b
\_
-
(a)\1{2}
(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10
(?<!a)b
(?i)\u212a
(?i)K
\x1c
a**
a*?*
a{2}{3}
a+?+
*a
a|*
(*a
(?:*a)
^*
\b+
$?
(a
a)
[a
[]
[a-\d]
[\d-a]
[z-a]
a{3,2}
\z
\Q
\e
\h
\R
\K
\G
\C
\c1
\X
\p{L}
\N
\k<a>
\g{1}
\1
(a\1)
(?P<a>b(?P=a))
(?P=b)
(?P<a>a)(?P<a>b)
(?P<1>a)
(?P<>a)
(?P>a)
(?<n>a)
(?'n'a)
(?|a|b)
(?R)
(?1)
(?&a)
(?(R)a|b)
(?(0)a)
(?(2)a|b)
(?(1)a|b|c)
(?(DEFINE)a)
(?C)a
(*UTF)a
(?^i:a)
(?L)a
a(?i)
a|(?i)b
((?i)a)
(?i
(?
(?)
(?-)
(?-i)a
(?i-i:a)
(?i-:a)
(?:
\x4
\x{41}
\u004
\U00110000
\400
[\400]
[\8]
\8
[\A]
[\Z]
[\B]
[\q]
\
(?<=a*)b
(?P<a
(?#a
""".strip("\n").split("\n")

TEXTS = [
    '', 'a', 'b', 'ab', 'aa', 'aab', 'abc', 'AB', 'Ab', 'aB', 'A', '\n', 'a\n', 'xx', 'xy', 'c', 'bc',
    'model.layers.11.self_attn.q_proj', 'model.layers.3.mlp.up_proj', 'q_proj', 'xq_proj', 'a.q_proj', '\x0b',
    '\x08', '\x07\x0c\n\r\t', '.', '\xe9', '\xe9\xe9', '-', ']', '[', 'a]', '[a]', '\x1c', ' ', '_', '5', '5a_ ',
    '#a', ' a b', '}', '{a}', 'a{}', 'a{x}', 'a{1', 'a{ 1}', 'a{,}', 'a\\b', 'aaa', 'abcdefghijj', '\u212a', 'k',
    'K', '\x00', '\x07', '&', ':]', 'al]', 'text.self_attn.q_proj', 'b\n', 'bx', '1\xa0', '\u2003', 'comment', '\\',
    '?', 'ba', 'a.b', 'a-b', '0', '01', 'a b', '{', 'bb', 'cc', 'bca', 'a1', 'proj', 'ac', 'B', 'a{,', '#',
]

PIECES = [
    'a', 'b', 'c', '.', '-', '_', '0', '1', '{', '}', ']', '[', '(', ')', '|', '*', '+', '?', '^', '$', '\\', '\\d',
    '\\w', '\\s', '\\S', '\\b', '\\Z', '\\A', '\\1', '\\2', '(?:', '(?P<n>', '(?P=n)', '(?=', '(?!', '(?<=', '(?<!',
    '(?>', '(?i)', '(?i:', '(?(1)', '(?(n)', '{1,2}', '{2}', '{,1}', '{,', '[ab]', '[^a]', '[a-c]', '[]a]', '[^]]',
    '[\\d', '[\\s\\S]', '\xe9', '\\.', '\\x41', '\\v', '\\0', '\\101', 'a*', 'b+?', 'c??', '(a)', '(b|c)', 'proj',
    '\\u0062', '#', ' ', '&&', '~', '[:', '(?#x)', ',', ':', '=', '!', '<', '>', 'P', 'i',
]


def random_pattern(rng):
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))


def case(pattern):
    try:
        regex = re.compile(pattern)
    except re.error:
        return [pattern]
    return [pattern, *([i for i, text in enumerate(TEXTS) if find(text)] for find in (regex.fullmatch, regex.match))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # about sets that a later Python may read otherwise
    rng = random.Random(SEED)
    cases = [case(pattern) for pattern in PATTERNS + sorted({random_pattern(rng) for _ in range(NUM_RANDOM)})]
    with open(args.out, "w") as out:
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in cases)
        out.write(f'{{"texts": {json.dumps(TEXTS)},\n"cases": [\n{rows}]}}\n')


if __name__ == "__main__":
    main()
