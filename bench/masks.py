#!/usr/bin/env python3
"""CPU time of masks of structured outputs: texts by chance over the schemas of tests/grammar, every allowed token as
likely as the others, as tests/grammar/probe.c measures them. Each text has a grammar of its own, so that each mask that
is not kept is made.

    bench/masks.py build/tests/grammar_probe [VOCABULARY]

VOCABULARY is a file of tiktoken's form, such as qwen.tiktoken; by default 151,936 words are made up.
"""
import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS, TOKENS = 4, 100  # of each schema; of each text, at most
MADE_NS = 1000          # a mask that is kept takes less


def made_up(n):
    rnd, words = random.Random(1), {bytes([i]): None for i in range(256)}
    while len(words) < n - 1:
        space, letters = rnd.choice(["", "", " "]), "etaoinshrdlucmfwypvbgkjqxz" + rnd.choice(["", "", "0123456789", '"{}[]:,\\n.-', "éö日本"])
        words[(space + "".join(rnd.choice(letters) for _ in range(rnd.randint(2, 9)))).encode()] = None
    return list(words)


def read(path):
    return [base64.b64decode(line.split()[0]) for line in pathlib.Path(path).read_text().splitlines()]


def of(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] / 1000


def main():
    probe_path, *rest = sys.argv[1:]
    words = read(rest[0]) if rest else made_up(151936)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([w.hex() for w in words] + [""], file)
        file.flush()
        process = subprocess.Popen([probe_path, file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        masks, compiling = [], []
        for schema in json.loads((ROOT / "tests/grammar/schemas.json").read_text(encoding="utf-8")):
            for seed in range(1, TEXTS + 1):
                process.stdin.write(json.dumps({"kind": 1, "text": json.dumps(schema), "seed": seed, "tokens": TOKENS}) + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                masks += answer["ns"]
                compiling.append(answer["compile_ns"])
    made = [ns for ns in masks if ns > MADE_NS]
    print(f"{len(words) + 1} tokens: {len(masks)} masks, p50 {of(masks, .5):.1f} us, p99 {of(masks, .99):.1f} us, longest "
          f"{of(masks, 1):.0f} us; made {len(made)}, p50 {of(made, .5):.1f} us, p99 {of(made, .99):.1f} us; compiling p50 "
          f"{of(compiling, .5):.1f} us")


if __name__ == "__main__":
    main()
