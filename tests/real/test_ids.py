"""The model of `make real` against transformers: ids of texts and of greedy continuations (ids.json, made by
tools/golden_real.py). Exit status 77 where the package registry cannot be reached.

    python3 tests/real/test_ids.py QUERN FOLDER       FOLDER: where the model is kept"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TOOL = HERE.parent.parent / "tools" / "real_model.py"


def lines(command, rows):
    done = subprocess.run(command, input="".join(json.dumps(r) + "\n" for r in rows), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    quern, folder = sys.argv[1:]
    made = subprocess.run([sys.executable, TOOL, folder], stdout=subprocess.PIPE, text=True)
    if made.returncode == 77:
        print("skipped: the registry cannot be reached from here")
    if made.returncode != 0:
        sys.exit(made.returncode)
    model = made.stdout.strip()
    want = json.loads((HERE / "ids.json").read_text(encoding="utf-8"))
    texts = lines([quern, "tokenize", "--tokenizer", model, "--jsonl"], [{"text": r["text"]} for r in want])
    made = lines([quern, "generate", "--model", model, "--prompts-file", "-", "--max-tokens", str(len(want[0]["ids"])),
                  "--temperature", "0", "--ignore-eos", "--dtype", "float32", "--format", "json", "-q"],
                 [{"prompt_ids": r["prompt_ids"]} for r in want])
    wrong = 0
    for r, t, g in zip(want, texts, made, strict=True):
        for what, have, right in (("ids of the text", t["ids"], r["prompt_ids"]), ("continuation", g["ids"], r["ids"])):
            if have != right:
                wrong += 1
                print(f"{r['text'][-40:]!r}: {what}\n  want {right}\n  have {have}")
    print(f"{len(want)} prompts, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
