#!/usr/bin/env python3
"""Random templates and conversations, rendered by jinja2 and by quern; what differs is printed.

    python3 tools/fuzz_chat.py [--library build/libquern.so] [--seed N] [--runs N] [--minutes N]

needs: jinja2. Right: the same text, or an error of both; a refusal of quern ("not supported", a limit) where
jinja2 gives a text is counted and not wrong. The exit status is 1 if anything was wrong.
"""
import argparse
import collections
import random
import re
import sys
import time
import warnings

from chat_oracle import LIMIT, UNSUPPORTED, Quern, Refused, expected

NAMES = ["a", "b", "c", "x", "ns", "m", "messages", "tools", "d", "xs", "s", "n", "u", "loop", "message", "t"]
TEXTS = ["''", "'a'", "'b c'", "' x '", "'a,b,,c'", '"it\'s"', "'\\n'", "'é日'", "'12'", "'3.5'", "'AbC dEf'",
         "'<b>&'", "'user'", "'role'", "'a\\nb\\n'", "'\\u00e9\\x41\\101'", "'x.y'", "'%s'", "'{}'", "'ß'", "'1_0'",
         "'  a  b '", "'\\\\d\\'q'", "'items'", "'content'", "'-7'", "'0x1f'", "'\\t'", "'a-b_c [d'", "'\U0001f600!'"]
NUMBERS = ["0", "1", "2", "3", "7", "10", "1.5", "2.0", "0.1", "1e3", "1e20", "12_3", "0x1F", "0b11", "1e-7", "100"]
FILTERS = {  # what they mostly want: filters with arguments
    "text": ["upper", "lower", "capitalize", "title", "trim", "trim('ab ')", "length", "replace('a', 'XY')", "replace('', '-')",
             "replace('b', 'x', 1)", "indent", "indent(2, true)", "indent('> ', first=true, blank=true)", "string", "safe", "escape", "e",
             "int", "int(5)", "int(base=16)", "float", "center(9)", "truncate(5)", "truncate(4, true, '..')", "truncate(3, false, '', 0)",
             "urlencode", "list", "first", "last", "reverse", "default('z')", "d('z', true)", "count", "format('q')", "tojson", "join('+')",
             "unique|list", "sort", "min", "max", "map('upper')|list", "select|list", "batch(2)|list", "wordcount"],
    "list": ["length", "first", "last", "join(', ')", "join", "join('-', attribute='role')", "list", "reverse|list", "sort", "sort(reverse=true)",
             "sort(attribute='role')", "sort(attribute='n,role')", "unique|list", "min", "max", "sum", "sum(start=1)", "sum(attribute='n')", "tojson",
             "tojson(indent=2)", "tojson(separators=(',', ':'))", "map('string')|list", "map(attribute='role')|list", "map('default', 'q')|join(',')",
             "map(attribute='content', default='none')|list", "map(attribute='n.0')|list", "map('upper')|join", "map('length')|list",
             "select('defined')|list", "select('string')|list", "select|list", "reject('none')|list", "reject|list", "select('odd')|list",
             "selectattr('role', 'equalto', 'user')|list", "selectattr('role')|list", "rejectattr('role', 'in', ['user'])|list|length",
             "selectattr('n', 'defined')|map(attribute='n')|list", "selectattr('role', '==', 'user')|first", "slice(2)|list", "slice(3, 0)|list",
             "batch(2)|list", "batch(2, 0)|list", "string", "default([])", "count", "select('in', [1, 2])|list", "map('int')|list", "items", "map('tojson')|join(';')",
             "dictsort", "map('first')|list", "select('gt', 1)|list", "map(attribute=0)|list", "reverse|first"],
    "dict": ["length", "tojson", "tojson(sort_keys=true)", "tojson(indent=1)", "items|list", "dictsort", "dictsort(true)", "dictsort(by='value')",
             "dictsort(reverse=true)", "list", "first", "string", "default({})", "join(',')", "count", "last", "sort", "map('upper')|list", "reverse|list", "xmlattr",
             "tojson(indent='>')", "tojson(ensure_ascii=true)"],
    "number": ["abs", "round", "round(1)", "round(2, 'floor')", "round(method='ceil')", "int", "float", "string", "tojson", "default(1)", "d(1, true)",
               "length", "upper", "filesizeformat"],
}
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even",
         "divisibleby(2)", "divisibleby 3", "in [1, 'a']", "in('abc')", "eq 1", "equalto('a')", "ne(2)", "lt 3", "gt(1)", "ge 2", "le 2", "sameas none",
         "sameas(true)", "lower", "upper", "callable", "escaped", "filter", "test", "==(1)", "lessthan 2"]
METHODS = {
    "text": ["split()", "split(',')", "split(',', 1)", "split('a')[0]", "rsplit(' ', 1)", "rsplit()", "strip()", "lstrip()", "rstrip('c ')", "upper()", "lower()",
             "title()", "capitalize()", "startswith('a')", "endswith('c')", "startswith(('a', 'b'))", "find('b')", "rfind('c')", "index('a')", "count('b')", "count('')",
             "replace('a', 'x')", "replace('', '.', 2)", "join(['p', 'q'])", "splitlines()", "splitlines(true)", "isdigit()", "isalpha()", "isalnum()", "isspace()",
             "isupper()", "islower()", "zfill(5)", "center(6, '*')", "ljust(4)", "rjust(4, '0')", "partition(',')", "rpartition(' ')", "removeprefix('a')",
             "removesuffix('c')", "format(1, 2)", "find('b', 1)", "startswith('b', 1)", "find('', 9)", "split(none, 1)", "strip(' x')[0]", "count('a', -2)", "rsplit(',', 2)", "rsplit(None, 1)"],
    "list": ["index(1)", "count(1)", "append(1)", "pop()", "copy()", "sort()"],
    "dict": ["get('a')", "get('zz', 5)", "get('role')", "items()", "keys()", "values()", "keys()|list", "items()|list", "update({})", "copy()", "pop('a')",
             "values()|list", "items()|length"],
}


class Maker:
    def __init__(self, rng):
        self.r = rng
        self.depth = 0
        self.loops = 0
        self.macros = []

    def pick(self, *options):
        return self.r.choice(options)

    def name(self):
        return self.r.choice(NAMES)

    def text(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.4:
            return self.r.choice(TEXTS)
        if r < 0.55:
            return f"{self.expr(depth - 1, 'text')}|{self.r.choice(FILTERS['text'])}"
        if r < 0.7:
            return f"{self.atom(depth - 1, 'text')}.{self.r.choice(METHODS['text'])}"
        if r < 0.8:
            return f"({self.expr(depth - 1, 'text')} {self.pick('+', '~', '~')} {self.expr(depth - 1)})"
        if r < 0.85:
            return f"({self.r.choice(TEXTS)} % {self.expr(depth - 1)})"
        if r < 0.92:
            return f"{self.atom(depth - 1, 'text')}{self.slice(depth - 1)}"
        return self.pick("m.content", "messages[0].content", "m['role']", "s", "message.content")

    def number(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.4:
            return self.r.choice(NUMBERS)
        if r < 0.7:
            return f"({self.expr(depth - 1, 'number')} {self.pick('+', '-', '*', '/', '//', '%')} {self.expr(depth - 1, 'number')})"
        if r < 0.75:
            return f"{self.r.choice(NUMBERS[:6])} ** {self.r.choice(NUMBERS[:5])}"
        if r < 0.85:
            return f"{self.expr(depth - 1, 'number')}|{self.r.choice(FILTERS['number'])}"
        return self.pick("n", "loop.index", "loop.index0", "xs|length", "-2", "- n", "+n", "xs[0]", "loop.revindex", "loop.length")

    def list(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.3:
            return self.pick("xs", "messages", "[]", "[1, 2, 3]", "['b', 'a', 'C']", "tools", "range(4)", "(1, 'a')", "()", "(2,)", "range(1, 10, 3)", "range(5, 0, -2)", "mixed")
        if r < 0.55:
            items = ", ".join(self.expr(depth - 1) for _ in range(self.r.randint(0, 3)))
            return f"[{items}]" if self.r.random() < 0.8 else f"({items},)" if items else "()"
        if r < 0.75:
            return f"{self.expr(depth - 1, 'list')}|{self.r.choice(FILTERS['list'])}"
        if r < 0.85:
            return f"{self.atom(depth - 1, 'list')}{self.slice(depth - 1)}"
        if r < 0.9:
            return f"{self.atom(depth - 1, 'list')}.{self.r.choice(METHODS['list'])}"
        return f"({self.expr(depth - 1, 'list')} + {self.expr(depth - 1, 'list')})"

    def dict(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.4:
            return self.pick("d", "m", "messages[0]", "{}", "{'a': 1, 'B': 'x', 'c': none}", "messages[-1]", "dict(a=1)", "dict([('k', 2)])")
        if r < 0.6:
            keys = [self.pick("'a'", "'b'", "1", "none", "true", "'items'", "1.0", "(1, 2)") for _ in range(self.r.randint(0, 3))]
            return "{" + ", ".join(f"{k}: {self.expr(depth - 1)}" for k in keys) + "}"
        if r < 0.8:
            return f"{self.expr(depth - 1, 'dict')}|{self.r.choice(FILTERS['dict'])}"
        return f"{self.atom(depth - 1, 'dict')}.{self.r.choice(METHODS['dict'])}"

    def truth(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.2:
            return self.pick("true", "false", "True", "none", "None", "loop.first", "loop.last", "add_generation_prompt", "u", "loop.changed(x)")
        if r < 0.5:
            return f"{self.atom(depth - 1)} is {self.pick('', 'not ')}{self.r.choice(TESTS)}"
        if r < 0.75:
            op = self.pick("==", "!=", "<", ">", "<=", ">=", "in", "not in")
            kind = self.pick("text", "number", "list", None)
            more = f" {self.pick('==', '<', 'in')} {self.atom(depth - 1)}" if self.r.random() < 0.1 else ""
            return f"({self.expr(depth - 1, kind)} {op} {self.expr(depth - 1, kind)}{more})"
        if r < 0.85:
            return f"not {self.expr(depth - 1)}"
        return f"({self.expr(depth - 1)} {self.pick('and', 'or')} {self.expr(depth - 1)})"

    def slice(self, depth):
        def bound():
            return self.pick("", "", "1", "-1", "2", "-2", "0", "9", self.number(0)) if self.r.random() < 0.9 else self.expr(0)
        r = self.r.random()
        if r < 0.4:
            return f"[{bound()}:{bound()}]"
        if r < 0.6:
            return f"[{bound()}:{bound()}:{self.pick('-1', '2', '-2', '', '1')}]"
        return f"[{self.pick('0', '-1', '1', '5', self.expr(0))}]"

    def atom(self, depth, kind=None):
        e = self.expr(depth, kind)
        return e if re.fullmatch(r"[\w.]+|'[^']*'", e) else f"({e})"

    def call(self, depth):
        name = self.r.choice(self.macros) if self.macros and self.r.random() < 0.9 else self.pick("f", "caller", "namespace")
        args = [self.expr(depth - 1) for _ in range(self.r.randint(0, 2))]
        args += [f"{k}={self.expr(depth - 1)}" for k in self.r.sample(["a", "b", "q"], self.r.randint(0, 2) if self.r.random() < 0.4 else 0)]
        if self.r.random() < 0.05:
            args.append("*xs")
        if self.r.random() < 0.05:
            args.append("**d")
        return f"{name}({', '.join(args)})"

    def expr(self, depth, kind=None):
        if kind is None or self.r.random() < 0.1:
            kind = self.pick("text", "number", "list", "dict", "truth", "any", "any")
        if kind != "any":
            return getattr(self, kind)(depth)
        r = self.r.random()
        if depth <= 0 or r < 0.3:
            return self.name()
        if r < 0.5:
            attribute = self.pick("role", "content", "a", "n", "items", "x", "x.y", "tool_calls", "index0", "previtem", "nextitem.role", "name", "keys")
            return f"{self.name()}.{attribute}"
        if r < 0.6:
            return f"{self.name()}[{self.expr(depth - 1)}]"
        if r < 0.75:
            other = f" else {self.expr(depth - 1)}" if self.r.random() < 0.8 else ""
            return f"({self.expr(depth - 1)} if {self.truth(depth - 1)}{other})"
        if r < 0.9:
            return self.call(depth)
        if r < 0.95:
            return f"loop.cycle({self.expr(depth - 1)}, 'z')"
        return f"{self.expr(depth - 1)}|{self.r.choice(FILTERS[self.pick('text', 'list', 'dict', 'number')])}"

    # Statements.

    def tag(self, inside):
        left, right = self.pick("", "", "", "-", "+"), self.pick("", "", "", "-", "+")
        return f"{{%{left} {inside} {right}%}}"

    def data(self):
        return self.pick("", " ", "\n", "\n  ", "x", "a b", "\n\n", "  \n ", "<|im_start|>", "é", "}", "{ {", "\t\n", "\r\n", "text\n   ", "%}", "'")

    def output(self):
        left, right = self.pick("", "", "-", "+"), self.pick("", "", "-")
        return f"{{{{{left} {self.expr(3)} {right}}}}}"

    def target(self, namespaces=True):
        if namespaces and self.r.random() < 0.15:
            return self.pick("ns.a", "ns.x", "ns.x", "d.a")
        return self.pick("a", "b", "c", "x", "t", "s", "n", "m", "a, b", "(a, b)", "xs")

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.r.randint(1, 4)))

    def inside_loop(self, depth):
        self.loops += 1
        body = self.block(depth)
        self.loops -= 1
        return body

    def inside_function(self, depth):
        loops, self.loops = self.loops, 0
        body = self.block(depth)
        self.loops = loops
        return body

    def statement(self, depth):
        r = self.r.random()
        if r < 0.22:
            return self.data()
        if depth <= 0 or r < 0.42:
            return self.output()
        if r < 0.56:
            return self.tag(f"set {self.target()} = {self.expr(3)}")
        if r < 0.62:
            return self.tag("set ns = namespace(" + self.pick("", "a=1", "a=1, x=xs", "d") + ")")
        if r < 0.72:
            out = self.tag(f"if {self.expr(2)}") + self.block(depth - 1)
            while self.r.random() < 0.25:
                out += self.tag(f"elif {self.expr(2)}") + self.block(depth - 1)
            if self.r.random() < 0.5:
                out += self.tag("else") + self.block(depth - 1)
            return out + self.tag("endif")
        if r < 0.84:
            over, test = self.expr(2, self.pick("list", "list", "dict", "text")), f" if {self.truth(2)}" if self.r.random() < 0.25 else ""
            out = self.tag(f"for {self.pick('m', 'm', 'x', 'k, v', 'a', 'message', '(a, b), c')} in {over}{test}") + self.inside_loop(depth - 1)
            if self.r.random() < 0.2:
                out += self.tag("else") + self.block(depth - 1)
            return out + self.tag("endfor")
        if r < 0.89:
            name = self.pick("f", "g", "h")
            args = self.pick("", "a", "a, b", "a, b=1", "a='x', b=a", "q=xs", "a, caller=none", "kwargs")
            body = self.inside_function(depth - 1)
            self.macros.append(name)
            return self.tag(f"macro {name}({args})") + body + self.pick("", "", "{{ caller() }}", "{{ varargs }}{{ kwargs }}") + self.tag("endmacro")
        if r < 0.91:
            return self.tag(f"call{self.pick('', '(a)', '(a, b=2)')} {self.call(2)}") + self.inside_function(depth - 1) + self.tag("endcall")
        if r < 0.93:
            return self.tag(f"set {self.target()}{self.pick('', '|trim', '|upper|trim', '|length')}") + self.block(depth - 1) + self.tag("endset")
        if r < 0.94:
            return self.tag(f"filter {self.r.choice(FILTERS['text'])}") + self.block(depth - 1) + self.tag("endfilter")
        if r < 0.95:
            return self.tag(f"with {self.target(False)} = {self.expr(2)}") + self.block(depth - 1) + self.tag("endwith")
        if r < 0.96:
            return self.tag("generation") + self.inside_function(depth - 1) + self.tag("endgeneration")
        if r < 0.97:
            return self.pick("{# c #}", "{#- c\n -#}", "{#+ c +#}\n", "{% raw %} {{ x }} {% endraw %}", "{%- raw -%} \n{% x %}{%- endraw +%}\n")
        if r < 0.985 and self.loops:
            return self.tag(self.pick("break", "continue"))
        return self.tag(f"print {self.expr(2)}, {self.expr(1)}")


def conversation(rng):
    def message():
        m = {"role": rng.choice(["user", "assistant", "system", "tool"])}
        content = rng.choice(["Hi", " two  words ", "", "a\nb", "<think>\nx\n</think>\n\ny", "é日\U0001f600", None, [{"type": "text", "text": "p"}], "it's \"q\""])
        if rng.random() < 0.95:
            m["content"] = content
        if rng.random() < 0.3:
            m["n"] = rng.choice([1, 2.5, None, [1, "x"], {"a": 1}, True, "s", 10 ** 30, 1e22, -0.0])
        if rng.random() < 0.2:
            m["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": rng.choice([{"x": 1, "y": "z"}, "{}"])}}]
        if rng.random() < 0.15:
            m[rng.choice(["reasoning", "thinking", "reasoning_content"])] = "hm"
        return m
    tools = rng.choice([None, None, [], [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]])
    kwargs = {"d": {"b": 1, "a": "x", "items": [1], "C": None}, "xs": [3, 1, 2], "s": "Some Text", "n": rng.choice([0, 4, -3, 2.5]),
              "mixed": [1, "a", None, 2.0, True, [1], {"k": "v"}]}
    out = {"messages": [message() for _ in range(rng.randint(1, 4))], "chat_template_kwargs": kwargs}
    if rng.random() < 0.5:
        out["add_generation_prompt"] = rng.random() < 0.5
    if tools is not None:
        out["tools"] = tools
    return out


def case(seed):
    """A template and a conversation."""
    rng = random.Random(seed)
    talk, maker = conversation(rng), Maker(rng)
    depth = rng.choice([1, 1, 2, 2, 3])
    return "".join(maker.statement(depth) for _ in range(rng.randint(1, 4))), talk


def want_of(template, talk):
    """The text, or the exception."""
    try:
        return expected(template, talk)
    except RecursionError:
        return None
    except Exception as e:  # whatever Python raises
        return e


def judge(quern, template, talk):
    """(verdict, what jinja2 said, what quern said)"""
    want = want_of(template, talk)
    if want is None or isinstance(want, str) and re.search(r" at 0x[0-9a-f]{6,}", want):
        return "unknown", want, None
    try:
        have = quern.text(template, talk)
    except Refused as e:
        if isinstance(want, str):
            return "refused" if e.code in (UNSUPPORTED, LIMIT) else "WRONG", want, e
        return "errors", want, e
    if not isinstance(want, str):
        return "WRONG", want, have
    return ("right" if want == have else "WRONG"), want, have


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default="build/libquern.so")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--runs", type=int, default=2000)
    p.add_argument("--minutes", type=float, default=0, help="run so long instead")
    p.add_argument("--show", type=int, default=10, help="wrong ones to print")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    quern, count, reasons = Quern(a.library), collections.Counter(), collections.Counter()
    end = time.time() + 60 * a.minutes
    seed = a.seed
    while time.time() < end if a.minutes else seed < a.seed + a.runs:
        template, talk = case(seed)
        verdict, want, have = judge(quern, template, talk)
        count[verdict] += 1
        if verdict == "refused":
            reasons[re.sub(r"^.*line \d+: ", "", str(have))[:80]] += 1
        if verdict == "WRONG" and count[verdict] <= a.show:
            print(f"--- seed {seed}\n{template!r}\nmessages {talk['messages']}\njinja2 {want!r:.600}\nquern  {have!r:.600}", flush=True)
        seed += 1
    print(dict(count))
    for reason, n in reasons.most_common(15):
        print(f"{n:6} refused: {reason}")
    return 1 if count["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
