"""tokenizer.json and tokenizer_config.json: cut, of other types, deep, out of range; texts and ids."""
import json
import os

from hostile import TINY, TOKENIZERS, Hostile, changed, removed

h = Hostile()
SHORT = "QN_TEST_SHORT" in os.environ  # a member is of a third of the other types, the next one of the next third
FILE = "tokenizer.json"
LINE = json.dumps({"text": "Hello  w\u00f6rld 123\n"}).encode() + b"\n"
WRONG = {"text": "x", "number": 7, "half": 1.5, "true": True, "list": [1], "object": {"a": 1},
         "null": None, "negative": -1, "huge": 2**62, "deep": None}


def load(name):
    return json.loads((TOKENIZERS / name / FILE).read_text())


def tokenizer(name, value, *words, codes=(1,), config=None):
    d = h.folder()
    (d / FILE).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    if config is not None:
        (d / "tokenizer_config.json").write_bytes(
            config if isinstance(config, bytes) else json.dumps(config).encode())
    h.run("tokenizer " + name, ["tokenize", "--tokenizer", d, "--jsonl"], words, codes, stdin=LINE)


def broken_text():
    raw = json.dumps(load("qwen")).encode()
    for n in [0, 1, 2, *range(10, len(raw), len(raw) // 40), len(raw) - 1]:
        tokenizer(f"cut at {n}", raw[:n], FILE)
    for name, text in [("deep", b"[" * 100000), ("deep objects", b'{"model":' * 100000),
                       ("NUL", bytes(100)), ("not UTF-8", b'{"model": "\xff"}'), ("list", b"[]"),
                       ("text", b'"x"'), ("number", b"1"), ("nothing", b"{}"),
                       ("long", b'{"x": "' + b"x" * (130 << 20) + b'"}')]:
        tokenizer(name, text, FILE)


def members(o, path=()):
    """Paths of all members, a few of each long table."""
    if isinstance(o, dict):
        for key in list(o)[:12]:
            yield (*path, key)
            yield from members(o[key], (*path, key))
    elif isinstance(o, list):
        for i in range(min(len(o), 4)):
            yield (*path, i)
            yield from members(o[i], (*path, i))


def wrong_types():
    """Every member of every golden tokenizer as something else: refused, or of no consequence."""
    turn = 0
    for name in ["qwen", "llama2", "metaspace", "pieces"]:
        whole = load(name)
        for path in members(whole):
            for kind, value in {**WRONG, "removed": removed}.items():
                if len(path) >= 3 and kind not in ("text", "negative", "huge", "object", "removed"):
                    continue
                turn += 1
                if SHORT and turn % 3:
                    continue
                if kind == "deep":
                    value = json.loads("[" * 500 + "]" * 500)
                tokenizer(f"{name} {'.'.join(map(str, path))} {kind}", changed(whole, path, value), FILE, codes=(0, 1))


def known_wrong():
    """What must be refused, with the field's name."""
    good = load("qwen")
    token = next(iter(good["model"]["vocab"]))
    for name, path, value, word in [
            ("no model", ["model"], removed, "model"),
            ("no vocabulary", ["model", "vocab"], {}, "model"),
            ("vocabulary of text", ["model", "vocab"], "x", "vocab"),
            ("id of text", ["model", "vocab", token], "x", "vocab"),
            ("id negative", ["model", "vocab", token], -1, "vocab"),
            ("id huge", ["model", "vocab", token], 2**31, "vocab"),
            ("id far", ["model", "vocab", token], 2**30, "vocab"),
            ("merges of text", ["model", "merges"], "x", "merges"),
            ("merge of one", ["model", "merges", 0], "x", "merges"),
            ("merge of three", ["model", "merges", 0], "a b c", "merges"),
            ("merge of strangers", ["model", "merges", 0], ["no such", "tokens"], "merge"),
            ("merge of numbers", ["model", "merges", 0], [1, 2], "merges"),
            ("another model", ["model", "type"], "WordPiece", "model"),
            ("added tokens of text", ["added_tokens"], "x", "added_tokens"),
            ("added token of text", ["added_tokens"], ["x"], "added_tokens"),
            ("added token without text", ["added_tokens"], [{}], "added_tokens"),
            ("added token too long", ["added_tokens"], [{"content": "x" * 5000}], "added_tokens"),
            ("normalizer unknown", ["normalizer"], {"type": "Shout"}, "normalizer"),
            ("normalizer of text", ["normalizer"], "x", "normalizer"),
            ("pre-tokenizer unknown", ["pre_tokenizer"], {"type": "Shout"}, "pre_tokenizer"),
            ("decoder unknown", ["decoder"], {"type": "Shout"}, "decoder"),
            ("post-processor unknown", ["post_processor"], {"type": "Shout"}, "post_processor"),
            ("pattern not closed", ["pre_tokenizer"], {"type": "Split", "behavior": "Isolated",
             "pattern": {"Regex": "(a"}}, "pre_tokenizer"),
            ("pattern too long", ["pre_tokenizer"], {"type": "Split", "behavior": "Isolated",
             "pattern": {"Regex": "a" * 5000}}, "pre_tokenizer")]:
        tokenizer(name, changed(good, path, value), FILE, word)
    deep = {"type": "NFC"}
    for _ in range(100):
        deep = {"type": "Sequence", "normalizers": [deep]}
    tokenizer("normalizers nested", {**good, "normalizer": deep}, FILE, "normalizer")
    tokenizer("normalizers many", {**good, "normalizer": {
        "type": "Sequence", "normalizers": [{"type": "NFC"}] * 10000}}, FILE, "normalizer")
    grow = {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 4000},
        *[{"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 4000}] * 20]}
    tokenizer("text that grows", {**good, "normalizer": grow}, codes=(0, 1))
    slow = {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(a*)*(a*)*b"}}
    d = h.folder()
    (d / FILE).write_text(json.dumps({**good, "pre_tokenizer": slow}))
    h.run("tokenizer pattern that backtracks", ["tokenize", "--tokenizer", d, "--jsonl"], (),
          (0, 1), stdin=json.dumps({"text": "a" * 5000}).encode() + b"\n")


def config():
    good = load("qwen")
    for name, value in [("list", []), ("text", "x"), ("deep", b"[" * 100000), ("empty", b""),
                        ("table", {"added_tokens_decoder": []}),
                        ("entry", {"added_tokens_decoder": {"1": 7}}),
                        ("entry without text", {"added_tokens_decoder": {"1": {}}})]:
        tokenizer("config " + name, good, "tokenizer_config.json", config=value)
    for name, value in [("bos", {"bos_token": 7}), ("eos", {"eos_token": {"content": []}}),
                        ("chat", {"chat_template": 7}), ("null", {"added_tokens_decoder": None})]:
        tokenizer("config " + name, good, codes=(0, 1), config=value)


def beside():
    """The older files beside tokenizer.json."""
    for file in ["special_tokens_map.json", "added_tokens.json"]:
        for name, raw in [("list", b"[]"), ("text", b'"x"'), ("deep", b"[" * 100000), ("empty", b""),
                          ("not UTF-8", b'{"\xff": 1}'), ("number", b'{"eos_token": 1.5}'),
                          ("nested", b'{"eos_token": {"content": [1]}}'),
                          ("long", json.dumps({"eos_token" if file[0] == "s" else "x" * 5000:
                                               "x" * 5000 if file[0] == "s" else 7}).encode()),
                          ("many", json.dumps({("t%d_token" % i): "t%d" % i if file[0] == "s" else i
                                               for i in range(70000)}).encode())]:
            d = h.folder(TINY)
            (d / "tokenizer_config.json").unlink()
            (d / file).write_bytes(raw)
            codes = (0, 1) if name == "many" else (1,)
            h.run(f"{file} {name}", ["tokenize", "--tokenizer", d, "--prompt", "a"], (), codes)


def folders():
    for name, make in [("missing", lambda p: None), ("a folder", lambda p: p.mkdir()),
                       ("a loop", lambda p: p.symlink_to(p)), ("empty", lambda p: p.touch()),
                       ("a device", lambda p: p.symlink_to("/dev/zero"))]:
        d = h.folder()
        make(d / FILE)
        h.run("tokenizer " + name, ["tokenize", "--tokenizer", d, "--jsonl"], (FILE,), stdin=LINE)


def lines():
    """What comes on stdin."""
    for name, raw, words in [
            ("cut", b'{"text": "a', ("line 1",)), ("a list", b"[]\n", ("line 1",)),
            ("no text", b'{"txt": "a"}\n', ("line 1", "text")), ("number", b'{"text": 3}\n', ("text",)),
            ("second", b'{"text": "a"}\nx\n', ("line 2",)), ("deep", b"[" * 100000, ("line 1",)),
            ("not UTF-8", b'{"text": "\xff"}\n', ("line 1",)), ("NUL", b"\0\n", ("line 1",)),
            ("lone surrogate", b'{"text": "\\ud800"}\n', ("line 1",))]:
        h.run("tokenize line " + name, ["tokenize", "--tokenizer", TINY, "--jsonl"], words, stdin=raw)
    h.run("tokenize a long line", ["tokenize", "--tokenizer", TINY, "--jsonl"], (), (0, 1),
          stdin=json.dumps({"text": "word " * (1 << 20)}).encode() + b"\n")
    h.run("tokenize spaces", ["tokenize", "--tokenizer", TINY, "--jsonl"], (), (0, 1),
          stdin=json.dumps({"text": " " * (1 << 20)}).encode() + b"\n")
    h.run("tokenize one long word", ["tokenize", "--tokenizer", TINY, "--jsonl"], (), (0, 1),
          stdin=json.dumps({"text": "a" * (1 << 20)}).encode() + b"\n")
    for name, raw, words in [
            ("beyond", b'{"ids": [1, 99999999]}\n', ("99999999",)), ("negative", b'{"ids": [-1]}\n', ()),
            ("half", b'{"ids": [1.5]}\n', ("ids",)), ("text", b'{"ids": "x"}\n', ("ids",)),
            ("huge", b'{"ids": [9223372036854775808]}\n', ("line 1",)), ("none", b"{}\n", ("ids",)),
            ("large", b'{"ids": [4294967296]}\n', ("ids",))]:
        h.run("detokenize line " + name, ["detokenize", "--tokenizer", TINY, "--jsonl"], words,
              stdin=raw)


broken_text()
wrong_types()
known_wrong()
config()
beside()
folders()
lines()
h.end()
