"""Prompts, lines of prompts, and program files that are damaged or another model's."""
import json
import os
import random

from hostile import GOLDEN, TINY, Hostile, generate

h = Hostile()
ONE_IN = 3 if os.environ.get("QN_TEST_SHORT") else 1  # of the damaged programs
QWEN3 = GOLDEN / "qwen3"
SMALL = ["--max-num-batched-tokens", "4", "--max-num-seqs", "2", "--max-model-len", "64"]


def prompts():
    run = ["generate", TINY, "-q", "--max-tokens", "2", *SMALL]
    n = json.loads((TINY / "config.json").read_text())["vocab_size"]
    long = "1," * 63 + "1"
    for name, args, words in [
            ("too long", ["--prompt-ids", long], ("prompt", "max_model_len")),
            ("text too long", ["--prompt", "word " * 500], ("prompt", "max_model_len")),
            ("no ids", ["--prompt-ids", ""], ("prompt", "empty")),
            ("no text", ["--prompt", ""], ("prompt", "empty")),
            ("id beyond", ["--prompt-ids", str(n)], ("prompt", str(n))),
            ("id at the end", ["--prompt-ids", "1,2,2147483647"], ("prompt", "2147483647")),
            ("id over 32 bits", ["--prompt-ids", "4294967297"], ("prompt-ids", "4294967297")),
            ("stop id beyond", ["--prompt-ids", "1", "--stop-token-ids", str(n)], ("stop",)),
            ("file missing", ["--prompt-file", "/nonexistent"], ("/nonexistent",)),
            ("file a folder", ["--prompt-file", "/"], ("/",)),
            ("context too long", ["--prompt-ids", "1", "--max-model-len", "2000000"],
             ("max_model_len",)),
            ("no memory", ["--prompt-ids", "1", "--kv-cache-memory-bytes", "1"], ("memory",))]:
        h.run("prompt " + name, [*run, *args], words)
    for name, args in [("id negative", ["--prompt-ids", "-1"]), ("ids of text", ["--prompt-ids", "x"]),
                       ("id over 64 bits", ["--prompt-ids", "99999999999999999999"]),
                       ("two", ["--prompt", "a", "--prompt-ids", "1"]),
                       ("threads", ["--prompt-ids", "1", "--threads", "99999999999"]),
                       ("temperature", ["--prompt-ids", "1", "--temperature", "1e400"])]:
        h.run("usage " + name, [*run, *args], (), (2,))
    h.run("threads too many", [*run, "--prompt-ids", "1", "--threads", "100000"], ("threads",))
    for name, text in [("not UTF-8", b"\xff\xfe\xc0\x80"), ("surrogate", b"\xed\xa0\x80"),
                       ("control", bytes(range(1, 32))), ("cut", "\u20ac".encode()[:2])]:
        h.run("prompt " + name, [*run, "--prompt", os.fsdecode(text)], (), (0,))
        d = h.folder()
        (d / "prompt").write_bytes(text + b"\0" + text)
        h.run("prompt file " + name, [*run, "--prompt-file", d / "prompt"], (), (0,))
    d = h.folder()
    (d / "empty").touch()
    h.run("prompt file empty", [*run, "--prompt-file", d / "empty"], ("empty",))
    h.run("prompt file endless", [*run, "--prompt-file", "/dev/zero"], ("/dev/zero",),
          resident=1500 << 20)


def lines():
    run = ["generate", TINY, "-q", "--max-tokens", "2", "--format", "json", *SMALL,
           "--prompts-file"]
    good = b'{"prompt_ids": [1, 2]}\n'
    for name, raw, words in [
            ("nothing", b"", ("no prompts",)), ("blank", b"\n \n\t\n", ("no prompts",)),
            ("cut", good + b'{"prompt_ids": [1', ("line 2",)), ("not JSON", b"x\n", ("line 1",)),
            ("a list", b"[1]\n", ("line 1", "object")), ("text", b'"x"\n', ("line 1",)),
            ("two on a line", b'{"prompt": "a"} {"prompt": "b"}\n', ("line 1",)),
            ("neither", b"{}\n", ("line 1", "prompt")),
            ("both", b'{"prompt": "a", "prompt_ids": [1]}\n', ("line 1", "prompt")),
            ("prompt number", b'{"prompt": 7}\n', ("line 1", "prompt")),
            ("ids text", b'{"prompt_ids": "1,2"}\n', ("line 1", "prompt")),
            ("ids nested", b'{"prompt_ids": [[1]]}\n', ("line 1", "prompt_ids")),
            ("ids half", b'{"prompt_ids": [1.5]}\n', ("line 1", "prompt_ids")),
            ("ids negative", b'{"prompt_ids": [-1]}\n', ("line 1", "prompt_ids")),
            ("ids wrap", b'{"prompt_ids": [4294967297]}\n', ("line 1", "prompt_ids")),
            ("ids beyond", good * 3 + b'{"prompt_ids": [999999]}\n', ("line 4", "999999")),
            ("ids none", b'{"prompt_ids": []}\n', ("line 1", "empty")),
            ("long", good + b'{"prompt_ids": [' + b"1, " * 100000 + b"1]}\n", ("line 2", "prompt")),
            ("deep", b'{"prompt": ' + b"[" * 100000, ("line 1",)),
            ("not UTF-8", b'{"prompt": "\xff"}\n', ("line 1",)),
            ("control", b'\x1b]0;x\x07\n', ("line 1",)),
            ("surrogate", b'{"prompt": "\\ud800"}\n', ("line 1",))]:
        d = h.folder()
        (d / "prompts.jsonl").write_bytes(raw)
        h.run("lines " + name, [*run, d / "prompts.jsonl"], words)
        h.run("lines on stdin " + name, [*run, "-"], words, stdin=raw)
    h.run("lines missing", [*run, "/nonexistent"], ("/nonexistent",))
    h.run("lines a folder", [*run, "/"], ("/",))


CHECKSUM = 64  # where struct prog_header of task/program.h has it


def sealed(raw):
    """The file with the checksum that it wants: what somebody would write who means it."""
    raw = bytearray(raw)
    raw[CHECKSUM:CHECKSUM + 8] = bytes(8)
    x = 0xcbf29ce484222325
    for byte in raw:
        x = (x ^ byte) * 0x100000001b3 & (1 << 64) - 1
    raw[CHECKSUM:CHECKSUM + 8] = (x ^ x >> 29).to_bytes(8, "little")
    return bytes(raw)


def programs():
    d = h.folder()
    path, other = d / "good.qnp", d / "other.qnp"
    h.run("compile", ["compile", QWEN3, "-o", path, "-q", *SMALL], (), (0,))
    h.run("compile another", ["compile", GOLDEN / "llama2-mha", "-o", other, "-q", *SMALL], (), (0,))
    h.run("compile into nowhere", ["compile", QWEN3, "-o", d / "none" / "x.qnp", "-q", *SMALL],
          ("none",))
    h.settle()
    if not path.exists() or not other.exists():
        h.failures.append("programs: none was compiled")
        return
    good = path.read_bytes()
    run = ["generate", "--model", QWEN3, "--prompt-ids", "1,2,3", "--max-tokens", "2", "-q",
           "--format", "json", "--program"]

    def file(name, raw, *words, codes=(1,)):
        f = d / f"{len(list(d.iterdir()))}.qnp"
        f.write_bytes(raw)
        h.run("program " + name, [*run, f], (f.name, *words) if 0 not in codes else (), codes)
        h.run("verify " + name, ["verify", f], (f.name, *words) if 0 not in codes else (), codes)

    h.run("program of another model", [*run, other], (other.name, "another model"))
    file("sealed as it was", sealed(good), codes=(0,))
    for n in [0, 1, 7, 8, 63, 64, 100, 200, 300, 1000, len(good) // 2, len(good) - 64, len(good) - 1]:
        file(f"cut at {n}", good[:n])
    file("longer", good + bytes(64))
    file("twice", good + good)
    file("zeros", bytes(len(good)))
    file("no magic", b"x" + good[1:])
    file("another version", good[:8] + (99).to_bytes(4, "little") + good[12:])
    file("text", b"{}" * 1000)
    h.run("program a folder", [*run, d], (str(d),))
    h.run("program missing", [*run, d / "none.qnp"], ("none.qnp",))
    h.run("program a config", [*run, QWEN3 / "config.json"], ("config.json",))
    h.run("program a model", [*run, QWEN3 / "model.safetensors"], ("model.safetensors",))
    h.run("program for other workers", [*run, path, "--threads", "7"], ("threads",))
    h.run("program for another length", [*run, path, "--max-model-len", "33"], ("max_model_len",))
    cuda = bytearray(good)
    cuda[44:48] = (1).to_bytes(4, "little")  # enum prog_target
    f = d / "cuda.qnp"
    f.write_bytes(sealed(cuda))
    h.run("program for another backend", [*run, f, "--backend", "cpu"], ("cuda.qnp", "backend"))

    # By accident: any change is noticed.
    rng = random.Random(1)
    for i in range(60 // ONE_IN):
        raw = bytearray(good)
        at = rng.randrange(len(raw))
        raw[at] ^= 1 << rng.randrange(8)
        file(f"bit flip {i} at {at}", bytes(raw))
    # On purpose, with the right checksum: refused by the checks or the proof, or of no consequence.
    for i in range(200 // ONE_IN):
        raw = bytearray(good)
        at = rng.randrange(len(raw))
        raw[at] ^= 1 << rng.randrange(8)
        file(f"sealed bit flip {i} at {at}", sealed(raw), codes=(0, 1))
    for at in range(8, 232, 4):  # the header, word by word
        for value in (0, 2**31, 2**32 - 1)[at // 4 % ONE_IN::ONE_IN]:
            raw = bytearray(good)
            raw[at:at + 4] = value.to_bytes(4, "little")
            file(f"word {value} at {at}", sealed(raw), codes=(0, 1))
    for i in range(60 // ONE_IN):
        raw = bytearray(good)
        for _ in range(20):
            at = rng.randrange(len(raw) // 4) * 4
            raw[at:at + 4] = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, rng.getrandbits(32)]).to_bytes(
                4, "little")
        file(f"many words {i}", sealed(raw), codes=(0, 1))


prompts()
lines()
programs()
h.end()
