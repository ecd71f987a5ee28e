"""Masks of src/grammar against those of llguidance and xgrammar: for each 2,000 pairs of a schema or regex and the
beginning of a text. They are equal, or differ as docs/structured-outputs.md says. Exit status 77 where the packages
cannot be fetched.

    python3 tests/grammar/test_oracle.py PROBE FOLDER       FOLDER: where the packages are kept"""
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import packages

SCHEMAS = json.loads((pathlib.Path(__file__).resolve().parent / "schemas.json").read_text(encoding="utf-8"))
REGEXES = ["[a-z]+", "a|bc|def", "(ab)*c?", "[0-9]{3}-[0-9]{4}", "[^x]{1,3}", ".*", "x.y", "(yes|no)\\.",
           "[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5}){0,2}", "[a-z0-9]+@[a-z0-9]+\\.com", "é+", "[\\u00e0-\\u00ff]{2}",
           "-?[0-9]+(\\.[0-9]+)?", "(a|ab)(c|bcd)*", "[a-c ]{40,90}", "((ab|c){9,30}-){2,20}x"]
WORDS = ['{"', '": ', '",', '"}', '" :', '","', '"]', "[]", "{}", '{"a', '"a":', '":', "true", "false", "null", "tru",
         "als", "},", "],", ' "', "  ", "\n  ", "\n", ": ", "12", "123", "2024", "-0", "0.", "1e", "e5", "ab", "abc",
         "xyz", "xy", "red", "gre", "en", "name", "nam", 'ame"', "age", "city", "zip", "next", "children", 'a"', '"b',
         "\\n", '\\"', "\\u", "\\u00", "é", "éé", "ö", "日", "日本", "\U0001f600", "@", ".com", "no", "yes", "hello",
         " W", "-1", "-12", "T1", "Z", '"q"', 'k":', '"v":', '"w":', "2-", "3-0", "00", "}}", "]}", '"]}', "[[", "[{"]
PAIRS = 2000


def vocabulary():
    rnd = random.Random(1)
    extra = {w.encode() for w in WORDS}
    for _ in range(600):
        extra.add("".join(rnd.choice('abcdefgxyz0123456789"{}[]:, -.é\\n') for _ in range(rnd.choice([2, 2, 3, 4])))
                  .encode())
    for c in ("é", "日", "😀"):
        b = c.encode()
        for i in range(1, len(b)):
            extra |= {b"a" + b[:i], b[i:] + b'"'}
    return [bytes([i]) for i in range(256)] + sorted(w for w in extra if len(w) > 1) + [b"<eos>"]


class Tokens:
    """What llguidance wants to know of a tokenizer."""

    def __init__(self, words):
        self.tokens, self.eos_token_id, self.bos_token_id = words, len(words) - 1, None
        self.special_token_ids = [self.eos_token_id]
        self.index = {w: i for i, w in reversed(list(enumerate(words)))}

    def __call__(self, text):
        text, ids = text.encode() if isinstance(text, str) else text, []
        while text:
            n = next(n for n in range(min(16, len(text)), 0, -1) if text[:n] in self.index)
            ids.append(self.index[text[:n]])
            text = text[n:]
        return ids


def outside(text):
    """The text without its JSON strings."""
    return re.sub(rb'"(\\.|[^"\\])*("|$)', b'"', text)


def has_more_space(text):
    """Whether there is white space between the parts of JSON that this project does not write."""
    text = outside(text)
    return any(not re.fullmatch(rb" |\r?\n[ \t]{0,64}" + (rb"|\r" if run.end() == len(text) else b""), run[0])
               for run in re.finditer(rb"[ \t\r\n]+", text))


# An oracle has documented differences by name: whether a text (prefix and token) may be only ours, only theirs.
class Llguidance:
    TOKENIZES = True  # where only one text can follow, it allows the tokens that the tokenizer makes of it
    OURS = {"escape of a slash": lambda t: rb"\/" in t, "escape of any character": lambda t: rb"\u" in t}
    THEIRS = {"white space": has_more_space,
              "minus zero in a range": lambda t: re.search(rb"(^|\D)-0", t),
              "second 60": lambda t: re.search(rb":[0-5]\d:6", t),
              "escapes in listed values": lambda t: rb"\u" in t}

    def __init__(self, folder, words):
        [self.module] = packages.load(folder, packages.LLGUIDANCE)
        self.n = len(words)
        self.tokenizer = self.module.LLTokenizer(self.module.TokenizerWrapper(Tokens(words)), slices=[])

    def knows(self, kind, text):
        return True

    def compile(self, kind, text):
        make = self.module.LLMatcher.grammar_from_json_schema if kind == 1 else self.module.LLMatcher.grammar_from_regex
        return make(text)

    def mask(self, grammar, prefix):
        """Ids that may come after the prefix; None: the prefix itself may not be."""
        m = self.module.LLMatcher(self.tokenizer, grammar, log_level=0)
        if m.is_error():
            sys.exit(m.get_error())
        if not m.consume_tokens(list(prefix)) or m.is_error():
            return None
        if m.is_stopped():
            return {self.n - 1}
        bits = m.compute_bitmask()
        return {i for i in range(self.n) if bits[i // 8] >> (i % 8) & 1}


class Stub(types.ModuleType):
    """A module of which nothing is used but that it is there."""
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


class Xgrammar:
    """Its masks are numpy arrays here: it imports torch and transformers, of which it uses nothing for this."""
    TOKENIZES = False
    OURS = {"minus zero": lambda t: re.search(rb"(^|[^\d.eE+])-0", t), "t and z": lambda t: re.search(rb"\d[tz]", t)}
    THEIRS = {"white space": has_more_space,
              "delete character in strings": lambda t: b"\x7f" in t,
              "end of a line for a dot": lambda t: b"\n" in t,
              "second 60": lambda t: re.search(rb":[0-5]\d:6", t),
              "days 29 to 31 of any month": lambda t: re.search(rb"-\d\d-(29|3)", t),
              "surrogates": lambda t: re.search(rb"\xed[\xa0-\xbf]", t)}
    # It takes any bytes for characters where there is a length or a pattern, holds patterns to both ends, writes
    # listed objects without spaces and fractions beside a bound with few digits, and allows leading zeros in addresses.
    # allOf, names that only `required` has, and an array's items that are the whole again are beyond it.
    OTHER = re.compile(r'Length|"pattern"|"const": \{|number", "m|ipv4|allOf|"q"|"#"')

    def __init__(self, folder, words):
        packages.fetch(folder, packages.XGRAMMAR, dependencies=False)
        packages.fetch(folder, *packages.XGRAMMAR_NEEDS)
        import tvm_ffi  # looks for torch itself
        del tvm_ffi
        sys.modules.update({name: Stub(name) for name in ("torch", "transformers")})
        import numpy
        import xgrammar
        self.module, self.n = xgrammar, len(words)
        self.bits = numpy.zeros((1, (self.n + 31) // 32), dtype=numpy.int32)
        vocabulary = xgrammar.TokenizerInfo(words, vocab_type=xgrammar.VocabType.RAW, vocab_size=self.n,
                                            stop_token_ids=[self.n - 1])
        self.compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=1)

    def knows(self, kind, text):
        return kind == 2 or not self.OTHER.search(text)

    def compile(self, kind, text):
        if kind == 2:
            return self.compiler.compile_regex(text)
        return self.compiler.compile_json_schema(text, any_whitespace=True, strict_mode=False)

    def mask(self, grammar, prefix):
        m = self.module.GrammarMatcher(grammar)
        if prefix and not m.accept_string(prefix):
            return None
        if m.is_terminated():
            return {self.n - 1}
        m.fill_next_token_bitmask(self.bits)
        return {i for i in range(self.n) if int(self.bits[0][i // 32]) >> (i % 32) & 1}


def explain(texts, names):
    """The names of the differences, None where one has no name."""
    found = collections.Counter()
    for t in texts:
        name = next((k for k, test in names.items() if test(t)), None)
        if name is None:
            return None
        found[name] += 1
    return found


def difference(oracle, words, prefix, ours, theirs):
    """The names of the documented differences, None where one has no name."""
    if theirs is None:
        return explain([prefix], oracle.OURS)
    begun = {i for i in ours - theirs if oracle.TOKENIZES and any(words[k].startswith(words[i]) for k in theirs)}
    a = explain([prefix + words[i] for i in ours - theirs - begun], oracle.OURS)
    b = explain([prefix + words[i] for i in theirs - ours], oracle.THEIRS)
    if a is None or b is None:
        return None
    return a + b + collections.Counter(["shorter tokens of a text without alternatives"] if begun else [])


def compare(oracle, words, probe):
    """Whether all masks of PAIRS pairs are equal, or differ as documented."""
    rnd, count, differences, seed = random.Random(2), collections.Counter(), collections.Counter(), 0
    grammars = [(1, json.dumps(s)) for s in SCHEMAS] + [(2, r) for r in REGEXES]
    grammars = [(kind, text, oracle.compile(kind, text)) for kind, text in grammars if oracle.knows(kind, text)]
    while count["pairs"] < PAIRS:
        seed += 1
        for kind, text, grammar in grammars:
            whole = probe(kind=kind, text=text, seed=seed, tokens=60)
            if "error" in whole:
                sys.exit(f"{text}: {whole['error']}")
            whole = bytes.fromhex(whole["text"])
            for cut in {min(seed, len(whole)), rnd.randrange(len(whole) + 1)}:
                prefix = whole[:cut]
                theirs = oracle.mask(grammar, prefix)
                ours = set(probe(kind=kind, text=text, prefix=prefix.hex())["ids"])
                names = difference(oracle, words, prefix, ours, theirs)
                count.update(pairs=1, equal=ours == theirs, wrong=names is None)
                differences.update((names or {}).keys())
                if names is None:
                    print(f"{text}\n  after {prefix}")
                    print("  only ours  ", [words[i] for i in sorted(ours - (theirs or set()))][:10])
                    print("  only theirs", [words[i] for i in sorted((theirs or set()) - ours)][:10])
    print(f"{type(oracle).__name__}: {count['pairs']} pairs of {len(grammars)} grammars, {count['equal']} equal, "
          f"{count['wrong']} wrong; as documented: {dict(differences)}")
    return count["wrong"] == 0


def main():
    probe_path, folder = sys.argv[1:]
    words = vocabulary()
    oracles = [Llguidance(folder, words), Xgrammar(folder, words)]
    path = pathlib.Path(folder) / "oracle-vocabulary.json"
    path.write_text(json.dumps([w.hex() for w in words[:-1]] + [""]))
    process = subprocess.Popen([probe_path, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def probe(**case):
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    sys.exit(not all([compare(oracle, words, probe) for oracle in oracles]))


if __name__ == "__main__":
    main()
