"""Texts that find differences between tokenizers: made by chance, the same for the same seed."""
import random
import unicodedata

import tokenizers

SCRIPTS = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1100, 0x11FF),
           (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xA640, 0xABFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF),
           (0xF900, 0xFFFD), (0x10000, 0x10FFF), (0x11000, 0x11FFF), (0x1D000, 0x1D7FF), (0x1F000, 0x1FBFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01FF)]
MARKS = [chr(c) for c in (*range(0x300, 0x370), *range(0x591, 0x5C8), *range(0x64B, 0x660), 0x93C, 0x94D, 0x9BC, 0xB3E, 0xB57, 0xCC2, 0xCD5, 0xCD6,
                          0xDCF, 0xDCA, 0xDDF, 0xF71, 0xF72, 0xF74, 0x1039, 0x1DC0, 0x20D0, 0x20D2, 0x3099, 0x309A, 0x1D165, 0x1D16D, 0x11127)]
COMPOSED = [c for c in map(chr, range(0xC0, 0x30000)) if unicodedata.normalize("NFD", c) != c and not 0xAC00 <= ord(c) <= 0xD7A3]
SPACES = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000\u200b\ufeff") + ["\r\n", "  ", "   ", "\n\n"]
DIGITS = list("0123456789") + list("\u0663\u0966\u2167\u00bd\u00b2\u2460\u3007\uff15\U0001d7d8\U0001ccf0")
WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were all her she "
         "there would their we him been has when who will no more if out so up said what its about than into them can only other time new some could "
         "these two may first then do any like my now over such our man me even most made after also did many off before must well back through years "
         "Natalia sold clips tokenizer antidisestablishmentarianism Schadenfreude na\u00efve co\u00f6perate \u0434\u043e\u043c \u03bb\u03cc\u03b3\u03bf\u03c2 \u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 "
         "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 Stra\u00dfe \u0130stanbul HTTPServer getElementById XMLHttpRequest iPhone").split()
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'lL", "'D", "'\u017f", "\u2019s", "'", "''", "'x"]
CODE = ["def f(x):\n    return x\n", "for (int i = 0; i < n; ++i) {\n\t", "}\n\n", "std::vector<int>", "a->b", "==", "!=", "//", "/* ", " */", "#include <", "=>",
        "\\n", "\"", "`", "${x}", "</div>", "&amp;", "0x1F", "1e-5", "_x", "__init__", "();", "[i]", "/usr/bin/", "\r\n/", "!\n/", "\t\t\t", "        "]
EMOJI = ["\U0001f600", "\U0001f44b\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1fa\U0001f1f8", "\u2764\ufe0f", "1\ufe0f\u20e3",
         "\U0001f9d1\U0001f3ff\u200d\U0001f680", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u200d", "\ufe0f"]


def assigned():
    """Every code point with a character, also those that only the library knows."""
    splitter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{Cn}"), behavior="removed")
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    return [piece[i] for piece, _ in splitter.pre_tokenize_str("".join(points)) for i in range(len(piece))]


def of_code_points():
    """Every assigned code point in several contexts."""
    for c in assigned():
        yield f"{c}a{c} {c}{c}B{c}\n"
        yield f"1{c}'{c} '{c}e x's{c}\u0301 .{c}{c}"


class Texts:
    def __init__(self, seed, special):
        self.rng = random.Random(seed)
        self.special = special
        self.kinds = [self.words, self.code_points, self.bytes, self.code, self.emoji, self.marks, self.spaces, self.digits, self.mixture]

    def words(self):
        rng = self.rng
        return "".join(rng.choice(WORDS) + (rng.choice(CONTRACTIONS) if rng.random() < 0.2 else "") + rng.choice(" . , - \n".split(" ") + [" "] * 6)
                       for _ in range(rng.randint(1, 12)))

    def code_points(self):
        rng = self.rng
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(low, high)) if rng.random() < 0.85 else rng.choice(SPACES + CONTRACTIONS) for _ in range(rng.randint(1, 24)))

    def bytes(self):
        return self.rng.randbytes(self.rng.randint(1, 40)).decode("utf-8", "replace")

    def code(self):
        return "".join(self.rng.choice(CODE + WORDS[:40]) for _ in range(self.rng.randint(1, 12)))

    def emoji(self):
        return "".join(self.rng.choice(EMOJI + [" ", "a", "1"]) for _ in range(self.rng.randint(1, 10)))

    def marks(self):
        rng = self.rng
        return "".join(rng.choice(COMPOSED + list("aeiouq\u1100\u1161\u11a8\uac00\uac01")) + "".join(rng.choice(MARKS) for _ in range(rng.randint(0, 4)))
                       for _ in range(rng.randint(1, 8)))

    def spaces(self):
        rng = self.rng
        return "".join(rng.choice(SPACES) * rng.choice((1, 1, 1, 2, 3, 7, 40)) + rng.choice(("", "", "a", "!", "1", "\u4e2d"))
                       for _ in range(rng.randint(1, 8)))

    def digits(self):
        rng = self.rng
        return "".join(rng.choice(DIGITS) * rng.choice((1, 1, 2, 3, 4, 30)) + rng.choice(("", "", "", ",", ".", " ", "a")) for _ in range(rng.randint(1, 10)))

    def mixture(self):
        rng = self.rng
        pools = [WORDS, SPACES, DIGITS, CONTRACTIONS, CODE, EMOJI, MARKS, COMPOSED, self.special, list("<|>[]_\u2581"), ["<0x41>", "<0xE4>", "<s>", "</s>"]]
        return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 14)))

    def take(self, count):
        return [self.rng.choice(self.kinds)() for _ in range(count)]


def long_texts():
    return [" " * 100_000, "\n" * 100_000, " \n" * 50_000, "1" * 100_000, "a" * 20_000, "A" * 20_000, "\u4e2d" * 10_000, "\u0301" * 5_000, "e\u0323\u0301" * 5_000,
            "!" * 20_000, "ab" * 20_000, "<|" * 20_000, "\U0001f600" * 5_000, "'s" * 20_000, "\u4e2dA" * 10_000, "\t " * 50_000 + "x", "12 " * 20_000]
