"""Random programs in the template language: expressions that mostly make sense to Python, and statements around them."""
import random

STRINGS = ["", "a", "abc", "Hello World", " x ", "a,b,,c", "é<b>&'\"", "ΑΣ straße", "1", "-2.5", "0x1F", "l1\nl2\r\n\n l3",
           "漢字 😀", "The-quick (brown) fox", "x" * 40, "\t tab\u00a0", "%s and %d", "{} {0}", "\u200b\x7f", "ab" * 7]
NUMBERS = ["0", "1", "2", "-1", "3", "7", "10", "-7", "100", "1_000", "0x1f", "2.5", "-0.5", "1e3", "1e-7", "0.1", "3.0",
           "1e16", "123456789.123", "9007199254740993", "true", "false"]
VARIABLES = {"n": 5, "z": 0, "f": 2.75, "neg": -3, "s": "Some Text", "u": "Ünï 😀", "blank": "", "t": True, "nothing": None,
             "words": ["pear", "Apple", "fig", "apple"], "nums": [3, 1, 2, 3], "mixed": [1, "a", None, 2.5, [1, 2], {"k": "v"}],
             "d": {"b": 2, "a": 1, "items": "shadow", "C": [1]}, "empty": [], "none_d": {},
             "rows": [{"role": "user", "content": "hi", "n": 2, "x": {"y": 1}}, {"role": "assistant", "content": None, "n": 1},
                      {"role": "User", "content": "yo", "n": 3, "extra": True}]}
FILTERS = {
    "any": ["string", "default('D')", "default('D', true)", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "length",
            "list", "int", "float", "abs", "e", "first", "last", "d(1)", "safe", "tojson(ensure_ascii=true)"],
    "str": ["upper", "lower", "trim", "trim('a x')", "title", "capitalize", "replace('a', 'Z')", "replace('', '-')",
            "replace('l', 'LL', 1)", "length", "reverse", "center(12)", "indent(2)", "indent('> ', true, true)", "truncate(8)",
            "truncate(9, true, '..', 0)", "wordcount", "list", "int", "float", "int(9, 16)", "urlencode", "e", "string", "first",
            "last", "join('-')", "format(1, 2)", "count", "unique|list", "sort|join", "map('upper')|join('|')", "batch(3)|list"],
    "list": ["length", "first", "last", "join", "join(', ')", "sort", "sort(reverse=true)", "reverse|list", "unique|list", "sum",
             "min", "max", "list", "map('string')|list", "map('upper')|list", "select|list", "reject('none')|list",
             "select('string')|list", "select('gt', 1)|list", "batch(2)|list", "batch(2, 0)|list", "slice(2)|list", "tojson",
             "slice(3, 'f')|list", "reject|list", "map('default', 'x')|list", "select('odd')|list", "string", "reverse|first"],
    "rows": ["map(attribute='role')|list", "map(attribute='extra', default='no')|list", "selectattr('extra')|list|length",
             "selectattr('role', 'equalto', 'user')|list", "rejectattr('content', 'none')|map(attribute='content')|join('/')",
             "sort(attribute='n')|map(attribute='n')|list", "sort(attribute='role,n')|map(attribute='n')|join",
             "groupby('role')|list", "map(attribute='x.y')|list", "sum(attribute='n')", "unique(attribute='role')|list|length",
             "groupby('n', default=3)|map('first')|list", "min(attribute='n')", "selectattr('n', 'in', [1, 2])|list|length",
             "rejectattr('missing', 'defined')|list|length"],
    "dict": ["length", "list", "items|list", "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)",
             "tojson", "tojson(separators=(',', ':'))", "string", "first", "join('+')", "items|map('first')|join", "last"],
    "num": ["abs", "round", "round(1)", "round(2, 'floor')", "round(0, 'ceil')", "int", "float", "string", "round(-1)", "tojson"],
}
METHODS = {
    "str": ["upper()", "lower()", "strip()", "lstrip('aH ')", "rstrip()", "split()", "split(',')", "split('a', 1)", "rsplit(' ', 1)",
            "rsplit(None, 1)", "split(none, 1)", "startswith('a')", "endswith(('c', 'd'))", "find('l')", "rfind('a')", "count('a')",
            "replace('a', 'b')", "title()", "capitalize()", "swapcase()", "splitlines()", "splitlines(true)", "partition(' ')",
            "rpartition('a')", "zfill(6)", "ljust(6, '.')", "rjust(6)", "center(7, '*')", "isdigit()", "isalpha()", "isupper()",
            "islower()", "isspace()", "isalnum()", "istitle()", "join(['x', 'y'])", "removeprefix('a')", "removesuffix('c')",
            "index('a')", "expandtabs(4)", "isnumeric()", "isdecimal()", "isascii()", "isprintable()", "format(1, 2, k=3)", "nope",
            "startswith('b', 1)", "find('', 2)", "count('')", "rindex('o')"],
    "list": ["count(1)", "index(1)", "append(1)", "copy()", "index('a')", "pop()"],
    "dict": ["items()", "keys()", "values()|list", "get('a')", "get('q', 7)", "get('q')", "a", "zz", "items()|list", "copy()",
             "update({})", "pop('a')", "keys()|list|sort"],
}
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean",
         "true", "false", "odd", "even", "divisibleby 3", "divisibleby(2)", "lower", "upper", "in [1, 'a', 2.5]", "eq 1",
         "equalto('a')", "ne 2", "gt 2", "lessthan(3)", "callable", "sameas none", "sameas(true)", "escaped", "filter", "test", ">= 1"]
SPECS = ["%s", "%d", "%5.1f", "%-6s|", "%05d", "%x", "%r", "%+d", "%e", "%g", "%c", "%%", "%3s%s", "%(a)s", "%.2s", "%#x", "%*d"]
BRACES = ["{}", "{:>6}", "{:<6}|", "{:^7}", "{:06.2f}", "{:,}", "{!r}", "{:d}", "{:x}", "{:.1%}", "{:+d}", "{0}{0}", "{:*^9}", "{:.3}",
          "{{}}", "{", "{:e}", "{a}", "{:s}"]


class Programs:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def literal(self, text):
        quote = self.r.choice("'\"")
        text = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
        if self.r.random() < 0.5:
            text = text.replace("\n", "\\n").replace("\t", "\\t")
        return quote + text + quote

    def expression(self, depth, kind=None):
        r = self.r
        kind = kind or r.choice(["str", "num", "list", "dict", "any", "bool", "rows"])
        if r.random() < 0.04:
            kind = "any"
        make = getattr(self, "leaf_" + kind if depth <= 0 else kind)
        return make() if depth <= 0 else make(depth - 1)

    def leaf_str(self):
        return self.literal(self.r.choice(STRINGS)) if self.r.random() < 0.6 else self.r.choice(["s", "u", "blank"])

    def leaf_num(self):
        return self.r.choice(NUMBERS) if self.r.random() < 0.7 else self.r.choice(["n", "z", "f", "neg", "t"])

    def leaf_list(self):
        return self.r.choice(["words", "nums", "mixed", "empty", "[1, 2, 3]", "['b', 'a']", "(1, 'x')", "range(4)", "range(6, 0, -2)",
                              "[[1, 2], [3]]", "()", "[none, true]", "(2,)"])

    def leaf_dict(self):
        return self.r.choice(["d", "none_d", "{'k': 1, 'j': 'x'}", "rows[0]", "{1: 'one', 'two': 2.0, none: []}", "dict(a=1, b='c')"])

    def leaf_any(self):
        return self.r.choice(["undef", "nothing", "none", "d.zz", "rows[9]", "s.nope", "n.x", "mixed[4]", "d['items']", "ns",
                              "undef.x", "self_", "namespace(a=1)", "joiner", "cycler('a', 'b').next()"])

    def leaf_bool(self):
        return self.r.choice(["true", "false", "t", "True", "False"])

    def leaf_rows(self):
        return "rows"

    def rows(self, depth):
        return f"rows|{self.r.choice(FILTERS['rows'])}"

    def apply(self, kind, depth):
        r, inner = self.r, self.expression(depth, kind)
        if r.random() < 0.3 or inner[0] in "-+":
            inner = f"({inner})"
        roll = r.random()
        if roll < 0.45:
            return f"{inner}|{r.choice(FILTERS[kind] if r.random() < 0.85 else FILTERS['any'])}"
        if roll < 0.85 and kind in METHODS:
            return f"{inner if inner[0] not in '0123456789' else '(' + inner + ')'}.{r.choice(METHODS[kind])}"
        # jinja2 folds slices of constants by other rules than it runs them: only what can be sliced is.
        return f"{inner}[{r.choice(['0', 'n']) if kind in ('num', 'dict') else self.subscript(depth)}]"

    def subscript(self, depth):
        r = self.r
        if r.random() < 0.5:
            return r.choice(["0", "1", "-1", "'a'", "'k'", "7", "n", "-9", "'items'", "2.0", "true"])
        part = lambda: r.choice(["", "", "0", "1", "-1", "2", "-2", "5", "none"])
        return f"{part()}:{part()}" + (f":{r.choice(['', '1', '2', '-1', '-2'])}" if r.random() < 0.5 else "")

    def str(self, depth):
        r = self.r
        roll = r.random()
        if roll < 0.15:
            return f"{self.expression(depth)} ~ {self.expression(depth)}"
        if roll < 0.25:
            return f"{self.expression(depth, 'str')} + {self.expression(depth, 'str')}"
        if roll < 0.3:
            return f"{self.expression(depth, 'str')} * {r.choice(['2', '0', '-1', 'n'])}"
        if roll < 0.38:
            values = r.choice([self.expression(depth), f"({self.expression(depth)}, {self.expression(depth)})", "d"])
            return f"{self.literal(' '.join(r.choices(SPECS, k=r.randint(1, 2))))} % {values}"
        if roll < 0.46:
            values = ", ".join(self.expression(depth) for _ in range(r.randint(0, 2)))
            return f"{self.literal(' '.join(r.choices(BRACES, k=r.randint(1, 2))))}.format({values})"
        return self.apply("str", depth)

    def num(self, depth):
        r = self.r
        if r.random() < 0.6:
            operator = r.choice(["+", "-", "*", "/", "//", "%", "**", "+", "-"])
            right = r.choice(["2", "3", "-1", "0.5"]) if operator == "**" else self.expression(depth, "num")
            left = self.expression(depth if operator != "**" else 0, "num")
            return f"({left} {operator} {right})" if r.random() < 0.5 else f"{left} {operator} {right}"
        if r.random() < 0.3:
            return f"{r.choice('-+')}{self.expression(depth, 'num')}"
        return self.apply("num", depth)

    def list(self, depth):
        r = self.r
        roll = r.random()
        if roll < 0.2:
            return "[" + ", ".join(self.expression(depth) for _ in range(r.randint(0, 3))) + "]"
        if roll < 0.3:
            return f"{self.expression(depth, 'list')} + {self.expression(depth, 'list')}"
        if roll < 0.35:
            return f"{self.expression(depth, 'list')} * 2"
        return self.apply("list", depth)

    def dict(self, depth):
        if self.r.random() < 0.2:
            return "{" + ", ".join(f"{self.expression(0, 'str')}: {self.expression(depth)}" for _ in range(self.r.randint(0, 2))) + "}"
        return self.apply("dict", depth)

    def any(self, depth):
        r = self.r
        roll = r.random()
        if roll < 0.4:
            return f"{self.expression(depth)} if {self.expression(depth, 'bool')}" + (f" else {self.expression(depth)}" if r.random() < 0.8 else "")
        if roll < 0.6:
            return f"{self.expression(depth)} {r.choice(['and', 'or'])} {self.expression(depth)}"
        return f"({self.expression(depth, 'any')})|{r.choice(FILTERS['any'])}"

    def bool(self, depth):
        r = self.r
        roll = r.random()
        if roll < 0.35:
            return f"{self.expression(depth)} is {'not ' if r.random() < 0.3 else ''}{r.choice(TESTS)}"
        if roll < 0.6:
            kind = r.choice(["num", "str", "list", None])
            text = f"{self.expression(depth, kind)} {r.choice(['==', '!=', '<', '<=', '>', '>='])} {self.expression(depth, kind)}"
            return text + (f" < {self.expression(depth, kind)}" if r.random() < 0.15 else "")
        if roll < 0.8:
            return f"{self.expression(depth)} {r.choice(['in', 'not in'])} {self.expression(depth, r.choice(['list', 'str', 'dict']))}"
        return f"not {self.expression(depth, 'bool')}"

    # Statements.
    def tag(self, text):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+", "-"]) + f" {text} " + r.choice(["", "", "-", "+", "-"]) + "%}"

    def text(self):
        return self.r.choice(["", " ", "\n", "\n  ", "x", " y \n", "\t\n\n", "é", "{", "}", "% ", "a\n\n   b\n", "\n    "])

    def block(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(self.r.randint(1, 3))) + self.text()

    def output(self, depth):
        r = self.r
        return "{{" + r.choice(["", "", "-", "+"]) + f" {self.expression(depth)} " + r.choice(["", "", "-"]) + "}}"

    def statement(self, depth):
        r = self.r
        if depth <= 0 or r.random() < 0.3:
            return self.output(r.choice([0, 1, 1, 2]))
        inner = depth - 1
        name = r.choice(["v", "w", "n", "s"])
        choice = r.randrange(15)
        if choice == 0:
            return self.tag(f"set {name} = {self.expression(1)}")
        if choice == 1:
            return self.tag(f"set ns.{name} = {self.expression(1)}") + "{{ ns." + name + " }}"
        if choice in (2, 3):
            return (self.tag(f"if {self.expression(1, 'bool')}") + self.block(inner) +
                    (self.tag(f"elif {self.expression(1)}") + self.block(inner) if r.random() < 0.3 else "") +
                    (self.tag("else") + self.block(inner) if r.random() < 0.5 else "") + self.tag("endif"))
        if choice in (4, 5, 6):
            target, values = r.choice([("x", self.expression(1, "list")), ("x", "rows"), ("k, v", "d.items()"), ("k, v", "d|dictsort"),
                                       ("x", "nums"), ("x", self.expression(1)), ("x, y", "[(1, 2), (3, 4)]")])
            condition = f" if {r.choice(['x', 'x is string', 'loop is undefined', 'not x', 'x != 3', 'ns.v is undefined'])}" if r.random() < 0.25 and "," not in target else ""
            return (self.tag(f"for {target} in {values}{condition}") + self.loop_part() + self.block(inner) + self.loop_part() +
                    (self.tag("else") + "E" if r.random() < 0.3 else "") + self.tag("endfor"))
        if choice == 7:
            return self.tag(f"set {name}") + self.block(inner) + self.tag("endset") + "{{ " + name + "|length }}"
        if choice == 8:
            return (self.tag("macro m(a, b=2, c=a)") + self.block(inner) + "{{ a }}{{ b }}{{ c }}" + r.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}"]) +
                    self.tag("endmacro") + "{{ m(" + r.choice(["", "1", "1, 2, 3", "b=5", "1, 2, 3, 4", "c=s, q=1", "*nums", "**d"]) + ") }}")
        if choice == 9:
            return self.tag("generation") + self.block(inner) + self.tag("endgeneration")
        if choice == 10:
            return self.tag(f"filter {r.choice(['upper', 'trim', 'length', 'replace(1, 2)', 'indent'])}") + self.block(inner) + self.tag("endfilter")
        if choice == 11:
            return self.tag(f"with v = {self.expression(1)}, w = v") + self.block(inner) + self.tag("endwith")
        if choice == 12:
            return self.tag("macro q(a)") + "<{{ caller(a) }}>" + self.tag("endmacro") + self.tag("call(i) q(7)") + "{{ i }}" + self.block(inner) + self.tag("endcall")
        if choice == 13:
            return r.choice(["{# comment #}", "{#- c -#}", "{#- c #}", "{#+ c +#}", "{% raw %} {{ x }} {% endraw %}", "{%- raw -%} {% if %} {%- endraw -%}", "{% print n, s %}",
                             "{%+ raw %}  {%+ endraw +%}\n"])
        return (self.tag("for x in [[1, [2, 3]], [4]] recursive") + "{{ loop.depth }}{{ loop(x) if x is sequence and x is not string and loop.depth < 3 else x }}" + self.tag("endfor"))

    def loop_part(self):
        r = self.r
        if r.random() < 0.5:
            return ""
        if r.random() < 0.15:
            return self.tag(f"if {r.choice(['loop.index > 1', 'loop.last', 'x == 2', 'loop.first'])}") + self.tag(r.choice(["break", "continue"])) + self.tag("endif")
        return "{{ loop." + r.choice(["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth",
                                      "cycle('a', 'b')", "changed(x)"]) + " }}"

    def program(self):
        return "{% set ns = namespace() %}" + self.block(3)
