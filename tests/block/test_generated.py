"""Programs from a seed, equal rewrites of them and mutants, judged by an oracle that shares no code
with quern: exact rationals, and 250 digits where a function leaves them, on small integers.

    python3 test_generated.py PROVE_TEXTS [COUNT] [SEED]

PROVE_TEXTS is the program of prove_texts.c. Of COUNT mutants that the oracle tells from their program
none may be proved, by the normal form or by the whole proof, nor may fields say that they are the same;
of as many rewrites at least 99 % must be proved. QN_TEST_PROGRAMS overrides COUNT.
"""
import os
import random
import subprocess
import sys
from decimal import Decimal, getcontext
from fractions import Fraction

getcontext().prec = 250
getcontext().Emax = 10**9
getcontext().Emin = -(10**9)

SIZES = {"t": 1, "h": 2, "i": 2, "s": 2}
ARGS = {  # name: (dims, kind)
    "x": ("th", "act"), "y": ("th", "act"), "z": ("ti", "act"), "g": ("h", "vec"), "k": ("h", "vec"),
    "w": ("ih", "weight"), "u": ("ih", "weight"), "c": ("", "const"), "d": ("", "const"),
    "m": ("th", "mask"), "b": ("sh", "share"), "j": ("i", "index(h)"),
    "q": ("ti", "index(h)"), "l": ("ti", "order(f)"),
}
NO_NUMBERS = ("share", "index(h)", "order(f)")
PICKS = {"pick": ("j", "i"), "pick2": ("q", "ti")}  # by which index, and its dims
SIGNATURE = ", ".join(f"{n}[{','.join(d)}] {k}" if d else f"{n} {k}" for n, (d, k) in ARGS.items())
UNARY = ["exp", "log", "sqrt", "rsqrt", "square", "sigmoid", "silu", "tanh", "abs"]
NEED_POSITIVE = {"log", "sqrt", "rsqrt"}
EXPONENTIAL = {"exp", "sigmoid", "silu", "tanh"}


class Undefined(Exception):
    pass


# ---- expressions: (op, operands...) ----
# ("num", Fraction) ("arg", name) ("+"|"-"|"*"|"/", a, b) ("neg", a) (unary, a) ("max"|"min", a, b)
# ("sum"|"mean", dim, a) ("maxo", dim, a) ("sumin", dim, mask, a) ("swap", a) ("size", dim)
# ("clamp", a, low, high) ("select", a, b): where m is 1, else; ("pick", a): at h = j[i];
# ("pick2", a): at h = q[t,i]; ("slots", a): by the places of l, read back

def kids(e):
    return [i for i in range(1, len(e)) if isinstance(e[i], tuple)]


def dims(e):
    op = e[0]
    if op == "num" or op == "size":
        return frozenset()
    if op == "arg":
        return frozenset(ARGS[e[1]][0])
    d = frozenset().union(*(dims(e[i]) for i in kids(e)))
    if op in ("sum", "mean", "maxo"):
        return d - {e[1]}
    if op == "select":
        return d | frozenset("th")
    if op in PICKS:
        return (d - {"h"}) | frozenset(PICKS[op][1])
    if op == "sumin":
        return (d | frozenset(ARGS[e[2]][0])) - {e[1]}
    return d


def text(e):
    op = e[0]
    if op == "num":
        n = e[1]
        s = str(abs(n.numerator)) if n.denominator == 1 else f"({abs(n.numerator)}/{n.denominator})"
        return f"(-{s})" if n < 0 else s
    if op == "arg":
        return e[1]
    if op == "size":
        return f"size({e[1]})"
    if op in "+-*/":
        return f"({text(e[1])} {op} {text(e[2])})"
    if op == "neg":
        return f"(-{text(e[1])})"
    if op in ("max", "min"):
        return f"{op}({text(e[1])}, {text(e[2])})"
    if op in ("sum", "mean"):
        return f"{op}({e[1]}: {text(e[2])})"
    if op == "maxo":
        return f"max({e[1]}: {text(e[2])})"
    if op == "sumin":
        return f"sum({e[1]} in {e[2]}: {text(e[3])})"
    if op == "swap":
        return f"swap(h: {text(e[1])})"
    if op in PICKS:
        return f"pick(h = {PICKS[op][0]}: {text(e[1])})"
    if op == "slots":
        return f"pick(f = l: pick(t = which(t: l): pick(i = which(i: l): {text(e[1])})))"
    if op == "clamp":
        return f"clamp({text(e[1])}, {text(e[2])}, {text(e[3])})"
    if op == "select":
        return f"select(m, {text(e[1])}, {text(e[2])})"
    return f"{op}({text(e[1])})"


def op_text(e):
    return f"op p({SIGNATURE}) -> o[{','.join(sorted(dims(e)))}]\n  o = {text(e)}\n" if dims(e) else \
        f"op p({SIGNATURE}) -> o\n  o = {text(e)}\n"


def weight(e):
    return 1 + sum(weight(e[i]) for i in kids(e))


# ---- the oracle ----

def number(v):
    return v if isinstance(v, Decimal) else Decimal(v.numerator) / Decimal(v.denominator)


def both(a, b):
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a, b
    return number(a), number(b)


def exponential(v):
    if v == 0:
        return Fraction(1)
    v = number(v)
    if abs(v) > 60:
        raise Undefined
    return v.exp()


def divide(a, b):
    if b == 0:
        raise Undefined
    a, b = both(a, b)
    return a / b


def function(op, v):
    if op == "exp":
        return exponential(v)
    if op == "square":
        return v * v
    if op == "abs":
        return abs(v)
    if op in NEED_POSITIVE:
        if v <= 0:
            raise Undefined
        if op == "log":
            return Fraction(0) if v == 1 else number(v).ln()
        r = number(v).sqrt()
        return r if op == "sqrt" else 1 / r
    if op == "tanh":
        e = exponential(2 * v)
        return divide(add(e, Fraction(-1)), add(e, Fraction(1)))
    s = divide(Fraction(1), add(Fraction(1), exponential(-v)))
    return s if op == "sigmoid" else mul(v, s)


def add(a, b):
    a, b = both(a, b)
    return a + b


def mul(a, b):
    a, b = both(a, b)
    return a * b


def value(e, at, inputs):
    op = e[0]
    if op == "num":
        return e[1]
    if op == "size":
        return Fraction(SIZES[e[1]])
    if op == "arg":
        return inputs[e[1]][tuple(at[d] for d in ARGS[e[1]][0])]
    if op in ("sum", "mean", "maxo", "sumin"):
        total = None
        for k in range(SIZES[e[1]]):
            inner = dict(at)
            inner[e[1]] = k
            v = value(e[-1], inner, inputs)
            if op == "sumin":
                v = mul(v, inputs[e[2]][tuple(inner[d] for d in ARGS[e[2]][0])])
            if total is None:
                total = v
            elif op == "maxo":
                total = max(both(total, v))
            else:
                total = add(total, v)
        return divide(total, Fraction(SIZES[e[1]])) if op == "mean" else total
    if op in PICKS:
        index, ds = PICKS[op]
        return value(e[1], {**at, "h": int(inputs[index][tuple(at[d] for d in ds)])}, inputs)
    if op == "slots":
        place = inputs["l"][(at["t"], at["i"])]
        (t, i), = [cell for cell, there in inputs["l"].items() if there == place]
        return value(e[1], {**at, "t": t, "i": i}, inputs)
    if op == "select":
        return value(e[1] if inputs["m"][(at["t"], at["h"])] else e[2], at, inputs)
    if op == "clamp":
        a, low = both(value(e[1], at, inputs), value(e[2], at, inputs))
        return min(both(max(a, low), value(e[3], at, inputs)))
    if op == "swap":
        return value(e[1], {**at, "h": (at["h"] + 1) % 2} if "h" in at else at, inputs)
    a = value(e[1], at, inputs)
    if op == "neg":
        return -a
    if op in UNARY:
        return function(op, a)
    b = value(e[2], at, inputs)
    if op == "+":
        return add(a, b)
    if op == "-":
        return add(a, -b)
    if op == "*":
        return mul(a, b)
    if op == "/":
        return divide(a, b)
    return (max if op == "max" else min)(both(a, b))


def draw(r):
    inputs = {}
    for name, (ds, kind) in ARGS.items():
        cells = [()]
        for dim in ds:
            cells = [c + (k,) for c in cells for k in range(SIZES[dim])]
        if kind == "mask":
            inputs[name] = {c: Fraction(r.randint(0, 1)) for c in cells}
        elif kind == "index(h)":
            inputs[name] = {c: Fraction(r.randrange(SIZES["h"])) for c in cells}
        elif kind == "order(f)":
            inputs[name] = dict(zip(cells, map(Fraction, r.sample(range(len(cells)), len(cells)))))
        elif kind == "share":
            mine = [r.randrange(SIZES["s"]) for _ in range(SIZES["h"])]
            inputs[name] = {c: Fraction(int(mine[c[1]] == c[0])) for c in cells}
        else:
            inputs[name] = {c: Fraction(r.choice([-3, -2, -1, 1, 2, 3])) for c in cells}
    return inputs


def indices(ds):
    found = [{}]
    for dim in sorted(ds):
        found = [{**f, dim: k} for f in found for k in range(SIZES[dim])]
    return found


def compare(a, b, r, points):
    """"equal" at all points, "different" at one, "unsure": too few points were defined."""
    defined = 0
    for _ in range(points * 4):
        inputs = draw(r)
        try:
            for at in indices(dims(a) | dims(b)):
                x, y = both(value(a, at, inputs), value(b, at, inputs))
                if x == y:
                    continue
                if isinstance(x, Fraction):
                    return "different"
                gap = abs(x - y) / (abs(x) + abs(y) + 1)
                if gap > Decimal("1e-60"):
                    return "different"
                if gap > Decimal("1e-100"):
                    return "unsure"
        except Undefined:
            continue
        defined += 1
        if defined == points:
            return "equal"
    return "unsure"


# ---- programs ----

class Maker:
    def __init__(self, r):
        self.r = r

    def leaf(self, need=""):
        fit = [n for n, (d, k) in ARGS.items()
               if set(need) <= set(d) and k not in NO_NUMBERS]
        if not need and self.r.random() < 0.2:
            return ("num", Fraction(self.r.choice([1, 2, 3, -1, 5]), self.r.choice([1, 1, 1, 2])))
        return ("arg", self.r.choice(fit))

    def positive(self, depth, exp):
        a = self.make(depth - 1, exp)
        return ("+", ("square", a), ("num", Fraction(self.r.choice([1, 2, 3]))))

    def reduction(self, depth, exp):
        dim = self.r.choice("hhi")
        inner = ("*", self.leaf(dim), self.make(depth - 1, exp))
        kind = self.r.random()
        if kind < 0.1:
            return ("maxo", dim, inner)
        if kind < 0.2 and dim == "h":
            return ("sumin", "h", "m", inner)
        return (self.r.choice(["sum", "sum", "mean"]), dim, inner)

    def make(self, depth, exp=True):
        r = self.r
        if depth <= 0:
            return self.leaf()
        kind = r.random()
        if kind < 0.12:
            return self.leaf()
        if kind < 0.52:
            op = r.choice("++-***/")
            b = self.positive(depth - 1, exp) if op == "/" else self.make(depth - 1, exp)
            return (op, self.make(depth - 1, exp), b)
        if kind < 0.76:
            return self.reduction(depth, exp)
        if kind < 0.82:
            return (r.choice(["max", "min"]), self.make(depth - 1, exp), self.make(depth - 1, exp))
        if kind < 0.85:
            a = self.make(depth - 1, exp)
            return ("swap", a) if "h" in dims(a) else a
        if kind < 0.865:
            a = self.make(depth - 1, exp)
            if "h" in dims(a):
                return (r.choice(["pick", "pick2"]), a)
            return ("slots", a) if {"t", "i"} <= dims(a) else a
        if kind < 0.875:
            low = Fraction(r.choice([-2, -1, 0]))
            return ("clamp", self.make(depth - 1, exp), ("num", low), ("num", low + 2))
        if kind < 0.885:
            return ("select", self.make(depth - 1, exp), self.make(depth - 1, exp))
        if kind < 0.9:
            return ("neg", self.make(depth - 1, exp))
        op = r.choice(UNARY)
        if op in EXPONENTIAL and not exp:
            op = "square"
        if op in NEED_POSITIVE:
            return (op, self.positive(depth - 1, exp))
        return (op, self.make(depth - 1, exp and op not in EXPONENTIAL))

    def program(self):
        while True:
            e = self.make(self.r.choice([2, 3, 3, 4]))
            if 4 <= weight(e) <= 28 and "s" not in dims(e):
                return e


# ---- rewrites ----

ONE = ("num", Fraction(1))


def rules(e, r):
    """What e is equal to, each by one law."""
    op, found = e[0], []
    if op in ("+", "*", "max", "min"):
        found.append((op, e[2], e[1]))
        if e[1][0] == op:
            found.append((op, e[1][1], (op, e[1][2], e[2])))
    if op == "-":
        found += [("+", e[1], ("neg", e[2])), ("neg", ("-", e[2], e[1]))]
    if op == "*":
        for a, b in ((e[1], e[2]), (e[2], e[1])):
            if b[0] in "+-" and b[0] != "neg":
                found.append((b[0], ("*", a, b[1]), ("*", a, b[2])))
            if b[0] in ("sum", "mean") and b[1] not in dims(a):
                found.append((b[0], b[1], ("*", a, b[2])))
            if b[0] == "/":
                found.append(("/", ("*", a, b[1]), b[2]))
            if b[0] == "neg":
                found.append(("neg", ("*", a, b[1])))
        if e[1] == e[2]:
            found.append(("square", e[1]))
        if e[1][0] == e[2][0] == "exp":
            found.append(("exp", ("+", e[1][1], e[2][1])))
    if op == "/":
        found += [("*", e[1], ("/", ONE, e[2])), ("/", ("neg", e[1]), ("neg", e[2]))]
        if e[1][0] in ("+", "-"):
            found.append((e[1][0], ("/", e[1][1], e[2]), ("/", e[1][2], e[2])))
    if op == "square":
        found.append(("*", e[1], e[1]))
    if op == "rsqrt":
        found.append(("/", ONE, ("sqrt", e[1])))
    if op == "exp" and e[1][0] == "+":
        found.append(("*", ("exp", e[1][1]), ("exp", e[1][2])))
    if op == "exp" and e[1][0] == "-":
        found.append(("/", ("exp", e[1][1]), ("exp", e[1][2])))
    if op == "silu":
        found.append(("*", e[1], ("sigmoid", e[1])))
        found.append(("/", e[1], ("+", ONE, ("exp", ("neg", e[1])))))
    if op == "sigmoid":
        found.append(("/", ("exp", e[1]), ("+", ("exp", e[1]), ONE)))
        found.append(("-", ONE, ("sigmoid", ("neg", e[1]))))
    if op == "tanh":
        two = ("num", Fraction(2))
        found.append(("-", ("*", two, ("sigmoid", ("*", two, e[1]))), ONE))
    if op in ("max", "min"):
        other = "min" if op == "max" else "max"
        found.append(("neg", (other, ("neg", e[1]), ("neg", e[2]))))
        c = ("arg", r.choice("cd"))
        found.append(("-", (op, ("+", e[1], c), ("+", e[2], c)), c))
    if op == "abs":
        found.append(("max", e[1], ("neg", e[1])))
    if op == "mean":
        found.append(("/", ("sum", e[1], e[2]), ("size", e[1])))
    if op == "sum":
        a = e[2]
        if a[0] in ("+", "-"):
            found.append((a[0], ("sum", e[1], a[1]), ("sum", e[1], a[2]))
                         if e[1] in dims(a[1]) and e[1] in dims(a[2]) else e)
        if a[0] == "*":
            for p, q in ((a[1], a[2]), (a[2], a[1])):
                if e[1] not in dims(p):
                    found.append(("*", p, ("sum", e[1], q)))
        if a[0] == "sum":
            found.append(("sum", a[1], ("sum", e[1], a[2])))
        if e[1] == "h":
            found.append(("sum", "s", ("sumin", "h", "b", a)))
            found.append(("sum", "h", ("swap", a)))
    if op == "sumin":
        found.append(("sum", e[1], ("*", ("arg", e[2]), e[3])))
    if op == "maxo":
        c = ("arg", r.choice("cd"))
        found.append(("-", ("maxo", e[1], ("+", e[2], c)), c))
    if op == "clamp":
        found.append(("min", ("max", e[1], e[2]), e[3]))
        found.append(("max", ("min", e[1], e[3]), e[2]))
        found.append(("neg", ("clamp", ("neg", e[1]), ("neg", e[3]), ("neg", e[2]))))
    if op == "select":
        m = ("arg", "m")
        found.append(("+", ("*", m, e[1]), ("*", ("-", ONE, m), e[2])))
        found.append(("select", e[1], ("select", e[1], e[2])))
    if op in PICKS and e[1][0] in ("+", "-", "*"):
        a, b = e[1][1], e[1][2]
        found.append((e[1][0], (op, a) if "h" in dims(a) else a,
                      (op, b) if "h" in dims(b) else b))
    if op == "slots":
        found.append(e[1])
    if {"t", "i"} <= dims(e) and r.random() < 0.2:
        found += [("slots", e)] * 3
    if op == "swap":
        if e[1][0] in ("+", "-", "*") and all("h" in dims(e[1][i]) for i in (1, 2)):
            found.append((e[1][0], ("swap", e[1][1]), ("swap", e[1][2])))
    if op == "+" and e[1][0] == e[2][0] == "/":
        (_, a, b), (_, c, d) = e[1], e[2]
        found.append(("/", ("+", ("*", a, d), ("*", c, b)), ("*", b, d)))
    if op == "square" and e[1][0] == "+":
        a, b = e[1][1], e[1][2]
        found.append(("+", ("+", ("square", a), ("square", b)), ("*", ("+", a, a), b)))
    if op == "exp":
        found.append(("square", ("exp", ("/", e[1], ("num", Fraction(2))))))
    if op == "sqrt":
        found.append(("*", e[1], ("rsqrt", e[1])))
    p = ("+", ("square", ("arg", r.choice("cd"))), ("num", Fraction(r.choice([1, 2]))))
    if r.random() < 0.2:
        found += [("/", ("*", e, p), p), ("*", e, ("*", ("sqrt", p), ("rsqrt", p))),
                  ("/", ("*", e, ("sqrt", p)), ("sqrt", p))]
    c = ("arg", r.choice(["c", "d"]))
    found += [("-", ("+", e, c), c), ("neg", ("neg", e)), ("/", ("*", e, c), c)]
    return found


def places(e, path=()):
    yield path, e
    for i in kids(e):
        yield from places(e[i], path + (i,))


def put(e, path, new):
    if not path:
        return new
    i = path[0]
    return e[:i] + (put(e[i], path[1:], new),) + e[i + 1:]


def rewrite(e, r):
    for _ in range(r.randint(1, 4)):
        path, at = r.choice(list(places(e)))
        new = put(e, path, r.choice(rules(at, r)))
        if dims(new) == dims(e) and weight(new) < 60:
            e = new
    return e


# ---- mutants ----

def same_shape(name):
    return [n for n, v in ARGS.items()
            if v[0] == ARGS[name][0] and n != name and v[1] not in NO_NUMBERS]


def mutate(e, r):
    path, at = r.choice(list(places(e)))
    op, found = at[0], []
    if op == "num":
        found = [("num", at[1] + 1), ("num", at[1] * 2), ("num", -at[1])]
    elif op == "arg":
        found = [("arg", n) for n in same_shape(at[1])] + [("neg", at), ("square", at)]
    elif op in ("+", "-", "*", "/"):
        found = [(o, at[1], at[2]) for o in "+-*/" if o != op] + [at[1], at[2]]
        found.append((op, at[2], at[1]))
        found.append((op, at[1], (op, at[1], at[2])))
    elif op in ("max", "min"):
        found = [("min" if op == "max" else "max", at[1], at[2]), at[1], at[2]]
    elif op in ("sum", "mean", "maxo", "sumin"):
        for o in ("sum", "mean", "maxo"):
            if o != op:
                found.append((o, at[1], at[-1]))
        for d in "hit":
            if d != at[1] and d in dims(at[-1]):
                found.append((op if op != "sumin" else "sum", d, at[-1]))
        if at[1] == "h":
            found.append(("sumin", "h", "m" if op != "sumin" else "b", at[-1]))
        inner = at[-1]
        if inner[0] in UNARY and at[1] in dims(inner[1]):
            found.append((inner[0], (op, *at[1:-1], inner[1])))
        if inner[0] == "*":
            found += [("*", inner[1], (op, *at[1:-1], inner[2])), (op, *at[1:-1], inner[1])]
    elif op in UNARY:
        found = [(o, at[1]) for o in UNARY if o != op and o not in NEED_POSITIVE] + [at[1]]
        a = at[1]
        if a[0] == "*":
            found.append(("*", a[1], (op, a[2])))
        if a[0] == "+":
            found += [("+", (op, a[1]), (op, a[2])), (op, a[1])]
        if op == "silu":
            found.append(("*", at[1], ("exp", at[1])))
    elif op in ("swap", "neg", "slots"):
        found = [at[1]]
    elif op in PICKS:
        found = [at[1], ("pick2" if op == "pick" else "pick", at[1]), (op, ("swap", at[1]))]
    elif op == "clamp":
        found = [at[1], ("max", at[1], at[2]), ("clamp", at[1], at[3], at[2]),
                 ("clamp", at[1], at[2], ("num", at[3][1] + 1)) if at[3][0] == "num" else at[1]]
    elif op == "select":
        found = [at[1], at[2], ("select", at[2], at[1]), ("*", ("arg", "m"), at[1])]
    elif op == "size":
        found = [("size", "i" if at[1] == "h" else "h")]
    if not found:
        return None
    new = put(e, path, r.choice(found))
    return new if dims(new) == dims(e) and well_typed(new) else None


def well_typed(e):
    """Every reduction has its dim, as texts demand."""
    if e[0] in ("sum", "mean", "maxo") and e[1] not in dims(e[2]):
        return False
    if (e[0] == "swap" or e[0] in PICKS) and "h" not in dims(e[1]):
        return False
    if e[0] == "slots" and not {"t", "i"} <= dims(e[1]):
        return False
    return all(well_typed(e[i]) for i in kids(e))


# ---- the test ----

def judge(program, pairs):
    """One answer a pair: "e s e", or "x message"."""
    lines = "".join(f"{op_text(a)}%%\n{op_text(b)}%%\n" for a, b in pairs)
    run = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    answers = run.stdout.splitlines()
    assert len(answers) == len(pairs), f"{len(answers)} answers to {len(pairs)} pairs"
    return answers


def make_pairs(r, count, change):
    """Well-typed pairs (program, changed) with the oracle's word; and how many it was unsure of."""
    wanted = "equal" if change is rewrite else "different"
    pairs, unsure, other = [], 0, 0
    maker = Maker(r)
    while len(pairs) < count:
        e = maker.program()
        if not well_typed(e):
            continue
        for _ in range(4):
            new = change(e, r)
            if new is None or new == e or not well_typed(new):
                continue
            word = compare(e, new, r, 3 if change is mutate else 1)
            if word == wanted:
                pairs.append((e, new))
            elif word == "unsure":
                unsure += 1
            else:
                other += 1
                assert change is not rewrite, f"the rewrite is wrong:\n{op_text(e)}{op_text(new)}"
    return pairs[:count], unsure, other


def chunked(program, r, count, change, look):
    done = unsure = equal = 0
    while done < count:
        n = min(2000, count - done)
        pairs, u, o = make_pairs(r, n, change)
        for pair, answer in zip(pairs, judge(program, pairs)):
            look(pair, answer)
        done += n
        unsure += u
        equal += o
    return unsure, equal


def main():
    program = sys.argv[1]
    count = int(os.environ.get("QN_TEST_PROGRAMS") or (sys.argv[2] if len(sys.argv) > 2 else 1500))
    seed = sys.argv[3] if len(sys.argv) > 3 else "quern"
    accepted, errors, unproved, told, fields = [], [], [], 0, []

    def look_mutant(pair, answer):
        nonlocal told
        if answer[0] == "x":
            errors.append((pair, answer))
        elif answer[0] == "e" or answer[4] == "e":
            accepted.append((pair, answer))
        elif answer[2] == "s":
            fields.append((pair, answer))
        told += answer.endswith("d")

    def look_rewrite(pair, answer):
        if answer[0] == "x" or answer[4] == "d":
            errors.append((pair, answer))
        elif answer[4] != "e":
            unproved.append((pair, answer))

    r = random.Random(seed)
    unsure, equal = chunked(program, r, count, mutate, look_mutant)
    print(f"mutants: {count}, accepted by the proof {len(accepted)}, by fields alone {len(fields)}; "
          f"{told} told apart by a witness; left out: {equal} equal, {unsure} unsure")
    unsure, _ = chunked(program, r, count, rewrite, look_rewrite)
    proved = count - len(unproved)
    print(f"rewrites: {count}, proved {proved} ({100 * proved / count:.2f} %); left out: {unsure} unsure")
    for what, pairs in (("accepted", accepted), ("error", errors), ("same in fields", fields),
                        ("not proved", unproved)):
        for (a, b), answer in pairs[:int(os.environ.get("QN_TEST_SHOW", 3))]:
            print(f"{what}: {answer}\n  {text(a)}\n  {text(b)}")
    if accepted or errors or fields or proved < 0.99 * count:
        sys.exit(1)


if __name__ == "__main__":
    main()
