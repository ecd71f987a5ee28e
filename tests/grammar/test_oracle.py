"""Masks of src/grammar against those of llguidance: 2,000 pairs of a schema or regex and the beginning of a text. They
are equal, or differ as docs/structured-outputs.md says. Exit status 77 where the package cannot be fetched.

    python3 tests/grammar/test_oracle.py PROBE FOLDER       FOLDER: where the package is kept"""
import collections
import json
import pathlib
import random
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import packages

SCHEMAS = json.loads((pathlib.Path(__file__).resolve().parent / "schemas.json").read_text(encoding="utf-8"))
REGEXES = ["[a-z]+", "a|bc|def", "(ab)*c?", "[0-9]{3}-[0-9]{4}", "[^x]{1,3}", ".*", "x.y", "(yes|no)\\.",
           "[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5}){0,2}", "[a-z0-9]+@[a-z0-9]+\\.com", "é+", "[\\u00e0-\\u00ff]{2}",
           "-?[0-9]+(\\.[0-9]+)?", "(a|ab)(c|bcd)*"]
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


class Oracle:
    def __init__(self, llguidance, words):
        self.module, self.n = llguidance, len(words)
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens(words)), slices=[])

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


def outside(text):
    """The text without its JSON strings."""
    return re.sub(rb'"(\\.|[^"\\])*("|$)', b'"', text)



def has_more_space(text):
    """Whether there is white space between the parts of JSON that this project does not write."""
    text = outside(text)
    return any(not re.fullmatch(rb" |\r?\n[ \t]{0,64}" + (rb"|\r" if run.end() == len(text) else b""), run[0])
               for run in re.finditer(rb"[ \t\r\n]+", text))


# Documented differences by name: whether a text (prefix and token) may be only ours, only theirs.
OURS = {"escape of a slash": lambda t: rb"\/" in t, "escape of any character": lambda t: rb"\u" in t}
THEIRS = {"white space": has_more_space,
          "minus zero in a range": lambda t: re.search(rb"(^|\D)-0", t),
          "second 60": lambda t: re.search(rb":[0-5]\d:6", t),
          "escapes in listed values": lambda t: rb"\u" in t}


def explain(texts, names):
    """The names of the differences, None where one has no name."""
    found = collections.Counter()
    for t in texts:
        name = next((k for k, test in names.items() if test(t)), None)
        if name is None:
            return None
        found[name] += 1
    return found


def main():
    probe_path, folder = sys.argv[1:]
    [llguidance] = packages.load(folder, "llguidance==1.9.1")
    words = vocabulary()
    path = pathlib.Path(folder) / "oracle-vocabulary.json"
    path.write_text(json.dumps([w.hex() for w in words[:-1]] + [""]))
    oracle, rnd = Oracle(llguidance, words), random.Random(2)
    process = subprocess.Popen([probe_path, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def probe(**case):
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    grammars = [(1, json.dumps(s), llguidance.LLMatcher.grammar_from_json_schema(json.dumps(s))) for s in SCHEMAS]
    grammars += [(2, r, llguidance.LLMatcher.grammar_from_regex(r)) for r in REGEXES]
    count, differences, wrong, seed = collections.Counter(), collections.Counter(), 0, 0
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
                count["pairs"] += 1
                if theirs is None:
                    names = explain([prefix], OURS)
                else:
                    # Where only one text can follow, llguidance allows the tokens that a tokenizer makes of it.
                    begun = {i for i in ours - theirs if any(words[k].startswith(words[i]) for k in theirs)}
                    a = explain([prefix + words[i] for i in ours - theirs - begun], OURS)
                    if begun and a is not None:
                        a["shorter tokens of a text without alternatives"] += 1
                    b = explain([prefix + words[i] for i in theirs - ours], THEIRS)
                    names = None if a is None or b is None else a + b
                    count["equal"] += ours == theirs
                if names is None:
                    wrong += 1
                    print(f"{text}\n  after {prefix}")
                    if theirs is not None:
                        print("  only ours  ", [words[i] for i in sorted(ours - theirs)][:10])
                        print("  only theirs", [words[i] for i in sorted(theirs - ours)][:10])
                else:
                    differences.update(names.keys())
    print(f"{count['pairs']} pairs, {count['equal']} equal, {wrong} wrong; as documented: {dict(differences)}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
