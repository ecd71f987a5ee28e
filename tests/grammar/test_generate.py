"""Text that models/tiny makes under 30 schemas at temperature 1 is valid under them, as jsonschema sees it; and a request
with a schema has the same tokens alone and in a batch. Exit status 77 where jsonschema cannot be fetched.

    python3 tests/grammar/test_generate.py QUERN FOLDER       FOLDER: where the package is kept"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import packages

N_TEXTS = 4


def generate(quern, rows, *options):
    command = [quern, "generate", "--model", HERE.parent.parent / "models" / "tiny", "--prompts-file", "-", "--format",
               "json", "-q", "--temperature", "1", "--max-tokens", "400", *options]
    done = subprocess.run(command, input="".join(json.dumps(r) + "\n" for r in rows), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    quern, folder = sys.argv[1:]
    [jsonschema] = packages.load(folder, packages.JSONSCHEMA)
    schemas = json.loads((HERE / "schemas.json").read_text(encoding="utf-8"))
    rows = [{"prompt": "User: Write JSON.\nAssistant:", "seed": seed, "structured_outputs": {"json": s}}
            for s in schemas for seed in range(N_TEXTS)]
    answers = generate(quern, rows)
    wrong = ended = 0
    seen = set()
    for row, answer in zip(rows, answers, strict=True):
        if answer["finish_reason"] != "stop":
            continue
        ended += 1
        schema = row["structured_outputs"]["json"]
        seen.add(json.dumps(schema))
        try:
            jsonschema.validate(json.loads(answer["text"]), schema,
                                format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        except (ValueError, jsonschema.ValidationError) as error:
            wrong += 1
            print(f"{json.dumps(schema)}\n  {answer['text']!r}\n  {error}")
    alone = [generate(quern, [row], "--max-num-seqs", "1")[0] for row in rows[::17]]
    differ = sum(a["ids"] != b["ids"] or a["logprobs"] != b["logprobs"]
                 for a, b in zip(alone, answers[::17], strict=True))
    print(f"{len(schemas)} schemas, {len(answers)} texts, {ended} complete under {len(seen)} schemas, {wrong} invalid; "
          f"{len(alone)} again alone, {differ} differ")
    sys.exit(wrong > 0 or differ > 0 or len(seen) < 30)


if __name__ == "__main__":
    main()
