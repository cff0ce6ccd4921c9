#!/usr/bin/env python3
"""Writes tokenizer golden cases: texts, the ids that Hugging Face `tokenizers` gives, and the text those ids decode to.

  python tools/golden/tokenizer_cases.py --tokenizer <SmolLM2 tokenizer.json> --out tests/golden/tokenizer
  (then tools/golden/make_goldens.py, or its --manifest, records the files in MANIFEST.json)

  smollm2_cases.jsonl         the file as it is
  smollm2_digits_cases.jsonl  the same file with "pre_tokenizer" replaced by that of source.json, the published SmolLM2
                              layout; a copy of the tokenizer that went through another format may have lost its Digits step
  source.json                 sha256 of the tokenizer file, its pre_tokenizer, the replacement, version of `tokenizers`
Each line: {"text", "ids": encode(text, add_special_tokens=False), "decoded": decode(ids, skip_special_tokens=False)}.
Lines are ASCII (\\u escapes, surrogate pairs above U+FFFF), so no editor or Unicode line break can change them.
"""
import argparse
import hashlib
import json
import pathlib
import random

SEED = 20240607
PUBLISHED_PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}

PROSE = [
    "", " ", "a", "Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "Trainer and rollout engine share one frozen base model in memory.",
    "Dr. Smith's e-mail (smith@example.org) bounced at 09:41 -- again!!!", "e.g., i.e., etc. ... \u2026 \u2014 \u2013 -",
    "\"Double\" and 'single' and \u201ccurly\u201d and \u2018curly\u2019 quotes", "semi;colon:colon,comma.dot?q!bang",
    "#hashtag @mention $100 50% a&b a*b a+b a=b a/b a\\b a|b a~b a^b `tick`", "(((nested) [brackets] {here}) <angle>)",
    "CamelCaseIdentifier snake_case_identifier kebab-case-identifier SCREAMING_CASE",
    "supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "https://www.example.org/a/b?x=1&y=%20z#frag", "C:\\Users\\name\\file.txt /usr/share/dict/words ~/x",
    "Question: What is 12 + 30?\nAnswer: 42\n", "<think>\nLet me see.\n</think>\n\n\\boxed{42}",
    "She said: \"It's 5 o'clock.\"", "1st 2nd 3rd 4th 21st", "x\u00b2 + y\u00b2 = z\u00b2", "O(n log n) \u2264 O(n\u00b2)",
]
CONTRACTIONS = [
    "I'll I'm I've I'd it's don't we're", "I'LL I'M I'VE I'D IT'S DON'T WE'RE", "I'Ll It'S We'rE", "'ll 'LL 's 'S 't 'T",
    "''s '' 's's 'tis 'twas rock'n'roll", "y'all'd've shouldn't've", "'re're 've've'd'd'm'm", "a'b'c'd'e'f", "l'homme d'\u00e9t\u00e9",
    "can\u2019t won\u2019t I\u2019ll \u02bcs", "'", "''", "'''", "' s ' t", "'sss 'lll 'rex 'vex", "don't'", "'1 's1 '2nd", "O'Reilly's 'd",
]
SPACES = [
    "  ", "   ", "    ", " " * 7, " " * 8, " " * 15, " " * 16, " " * 17, " " * 33, " " * 64, "a b", "a  b", "a   b", " a", "  a", "a ", "a  ",
    "\t", "\t\t", "\t\t\ta", " \t \t ", "a\tb", "a \tb", "\n", "\n\n", "\n\n\n", "a\nb", "a\n\nb", "a \n b", "a\n ", " \n", "\n a", "\n  a",
    "\r", "\r\n", "\r\n\r\n", "a\r\nb", "a\rb\r", "line one\r\nline two\r\n\r\nline four\r\n", "\r\r\n\n", "mixed\nline\r\nends\rhere",
    "\u00a0", "a\u00a0b", "a \u00a0b", "\u00a0\u00a0a", "\u2003\u2002a\u2009b", "\u3000\u5168\u89d2", "a\u200bb", "\u200b \u200b", "\ufeffBOM",
    "a\u2028b\u2029c", "a\x0bb\x0cc", "\x85next", "\u1680ogham\u205f\u202fnarrow", " !", "  !", "   !x", "! !  !   !", "a  .  b",
    "trailing   ", "   leading", "  \n  \n  ", "\n\t\n\t\n", "a\n\n\n\n\nb", " \r\n \r\n", "word \n\n  word", "\x1c\x1d\x1e\x1f", "x\u180ey",
]
DIGITS = [
    "0", "7", "10", "42", "123", "1234", "12345", "123456", "1234567890", "000", "00001", "3.14159", "1,234,567.89", "-1", "+1", "1e-5", "0x1F3A",
    "2024-06-07T09:41:00Z", "v1.2.3-rc4", "a1b2c3", "1a 2b", "1 2 3", " 1", "  12", "12  34", "12\n34", "100%", "$5.00", "\u00a35", "5\u20ac",
    "\u0663", "\u0660\u0661\u0662\u0663\u0664", "a\u0663b", "\u2167", "\u2160\u2161\u2162 \u2170", "\u00bd", "1\u00bd", "\u00bc\u00bd\u00be",
    "\u00b2\u00b3\u00b9", "x\u00b2y\u2083", "\u2460\u2461\u24ea", "\u0967\u0968\u0969", "\u0e51\u0e52", "\u4e00\u4e8c\u4e09\u5341\u767e",
    "\uff11\uff12\uff13", "\U0001d7d8\U0001d7d9\U0001d7ec", "\u3007\u3021", "\u09f4\u0bf0\u0f33", "\U00010107\U00010140", "12\u066312", "\u2189\u215b",
    "\u00bd cup, \u2167 chapters, \u0663 days", "9" * 40, "1 000 000", "1_000_000", "1'000", "12's", "\u00b7\u0387\u00aa\u00ba1",
    "\u1369\u137c", "\u19da\u2070\u2080", "\U0001f100\U0001f10b", "\u3220\u3280\u32bf", "\U00011fc0", "\U0001e8c7",
]
UNICODE = [
    "na\u00efve caf\u00e9 \u00fcber stra\u00dfe", "cafe\u0301 (combining) vs caf\u00e9", "e\u0301\u0301 a\u0308\u0304", "\u0301", " \u0301", "a \u0301b", "Z\u0351\u036b\u0343a\u0340l\u0358g\u0338o",
    "\u212b \u00c5 A\u030a", "\ufb01 \ufb00 \ufb04", "\u01c5 \u01c8 \u1f88", "I\u0307 \u0130 \u0131", "\u1e9e \u00df",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\u30cf\u3099\u30d0 \uff8a\uff9e", "\uc548\ub155\ud558\uc138\uc694", "\u1112\u1161\u11ab",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0b95\u0bca\u0b9f\u0bc1",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u1010\u1031\u102c\u1004\u103a", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0", "\u12a0\u121b\u122d\u129b", "\u13e3\u13b3\u13a9 \uab70",
    "\u202eright-to-left\u202c \u200f\u200e", "a\u00adb soft\u00adhyphen", "\u2200x\u2208\u211d: \u221ax \u2260 \u00bfx\u00bf", "\u222b\u2080\u00b9 f dx \u2248 \u2211\u1d62",
    "\U0001d400\U0001d41a\U0001d4d0 math letters", "\U00020000\U0002a6df rare han", "\ue000\uf8ff private", "\ufffd replacement", "\ufdfa", "\u00ff\u0100\u017f\u0180", "\x7f\x80\x9f\xa0\xad", "\x00", "a\x00b", "\x01\x02\x03", "\u0378unassigned", "\U0010ffff\ufffe",
    "\u02b0\u02c6modifier \u02d0", "\u00aa\u00ba ordinal", "\u203f\u2040_connector", "\u20ac\u00a3\u00a5\u20b9\u20bf", "\u2190\u2191\u2192\u2193\u21d2", "\u2500\u2502\u250c\u2510\u2588\u2591", "\u2800\u28ff braille",
    "\u0120not a space\u010a", "\u0130\u0120\u0122", "\u24b6\u24d0 circled", "\u0903\u20dd enclosing 1\u20e3", "\u1f60\u0345", "\u0600\u06dd\u0661",
]
EMOJI = [
    "\U0001f600", "\U0001f600\U0001f603\U0001f604", "hi \U0001f44b\U0001f3fd there", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1fa\U0001f1f8\U0001f1e9\U0001f1ea", "\u2764\ufe0f \u2764", "1\ufe0f\u20e3 #\ufe0f\u20e3", "\U0001f9d1\U0001f3ff\u200d\U0001f680", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "a\U0001f600b", "\U0001f600 1 \U0001f600", "\U0001fae0\U0001fabf new", "\u263a\ufe0e\u263a\ufe0f", "\u200d\u200d", "\ufe0f",
]
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|><|im_end|>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nWhat's 2+2?<|im_end|>\n",
    " <|im_start|> ", "a<|im_end|>b", "a <|im_end|> b", "<|im_start|", "|im_start|>", "<<|im_start|>>", "<|im_start|>1<|im_end|>2", "<|IM_START|>", "<|im_start |>",
    "<repo_name>x/y<file_sep><filename>a.py<gh_stars>10", "<reponame><repo_name>", "<issue_start><issue_comment>c<issue_closed>", "<jupyter_start><jupyter_text>t<jupyter_code>1<jupyter_output><empty_output><jupyter_script>",
    "<|endoftext|><|endoftext|>", "<|im_end|>\n\n<|im_end|>\r\n", "I'<|im_end|>ll", "caf<|im_end|>\u0301", "12<|im_end|>34", "  <|im_end|>  ", "<s></s>[INST]<pad><unk>", "<|begin_of_text|><|eot_id|><tool_call>",
]
CODE = [
    "def f(x):\n    return x + 1\n", "def fib(n: int) -> int:\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "\tfor (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n\t}\n", "#include <vector>\n\ntemplate <class T>\nT&& f(std::vector<T>&& v) { return std::move(v[0]); }\n",
    "SELECT a.*, COUNT(*) FROM t AS a WHERE a.x >= 10 GROUP BY 1;", "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\\n\"}}",
    "<div class=\"x\">\n  <p>text &amp; more</p>\n</div>", "if __name__ == \"__main__\":\n    main()", "x = y if z else w  # comment", "/* block\n * comment\n */",
    "a->b::c.d()[e]{f};", "!= == === <= >= << >> <<= && || ?? ?. => -> :: ... ++ --", "printf(\"%d\\t%s\\n\", i, s);", "grep -rn 'foo.*bar' --include=\"*.py\" . | sort -u > out.txt 2>&1",
    "\\begin{align}\n  x &= \\frac{1}{2} \\\\\n\\end{align}", "- [ ] item\n- [x] done\n  1. nested\n\n```python\nprint('hi')\n```\n", "| a | b |\n|---|---|\n| 1 | 2 |", "let s = `${a}-${b}`;\r\n", "    return {k: v for k, v in d.items() if v is not None}",
    "git commit -m \"fix: don't drop the last token\"", "0b1010 0o17 0xFFul 1'000'000 1_000 .5f", "\\d+\\.\\d*|[^\\s\\p{L}]+", "import numpy as np;np.zeros((3,4))", "==========", "----------", "__________", "..........", "##########", "*" * 50, "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ababababababababababab",
    "    " * 5 + "deep", "}\n}\n}\n", "});\n\n", ");\r\n\r\n//",
]


def random_texts(count):
    """Pieces of every kind glued without care for boundaries."""
    rng = random.Random(SEED)
    pieces = [t for group in (PROSE, CONTRACTIONS, SPACES, DIGITS, UNICODE, EMOJI, SPECIAL, CODE) for t in group if 0 < len(t) < 24]
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(2, 7))) for _ in range(count)]


def write_cases(path, tokenizer, texts):
    with open(path, "w", newline="\n") as f:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            f.write(json.dumps({"text": text, "ids": ids, "decoded": decoded}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    import tokenizers
    source = args.tokenizer.read_bytes()
    config = json.loads(source)
    texts = PROSE + CONTRACTIONS + SPACES + DIGITS + UNICODE + EMOJI + SPECIAL + CODE
    texts += random_texts(40)
    texts = list(dict.fromkeys(texts))
    args.out.mkdir(parents=True, exist_ok=True)
    write_cases(args.out / "smollm2_cases.jsonl", tokenizers.Tokenizer.from_file(str(args.tokenizer)), texts)
    published = tokenizers.Tokenizer.from_str(json.dumps(config | {"pre_tokenizer": PUBLISHED_PRE_TOKENIZER}))
    write_cases(args.out / "smollm2_digits_cases.jsonl", published, texts)
    (args.out / "source.json").write_text(json.dumps({
        "tokenizer_sha256": hashlib.sha256(source).hexdigest(), "tokenizer_bytes": len(source),
        "pre_tokenizer": config["pre_tokenizer"], "published_pre_tokenizer": PUBLISHED_PRE_TOKENIZER,
        "tokenizers_version": tokenizers.__version__, "cases": len(texts), "seed": SEED,
    }, indent=2, sort_keys=True) + "\n")
    print(len(texts), "cases")


if __name__ == "__main__":
    main()
