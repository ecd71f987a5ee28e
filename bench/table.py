#!/usr/bin/env python3
"""Draws the README's table of speeds from the newest recorded results.

    bench/table.py            prints it
    bench/table.py --write    puts it between the marks in README.md

Reads bench/results/gpu-*.json (tests/gpu/run) and bench/results/cpu-*.json (bench/run.py): per device
the newest file that measured a model wins. Nothing is computed but what stands in those files.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- bench/table.py writes this table -->", "<!-- end of table -->"


def runs():
    """(device, model, date, file, run) of every benchmark on record, oldest first."""
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "parts" in record:
            for model, part in record["parts"].get("bench", {}).items():
                if "result" in part:
                    yield part["result"]["device"].split(",")[0], model, record["date"], path.name, part["result"]
        elif path.name.startswith("cpu-"):
            for model, run in record["models"].items():
                yield f"{record['cpu']}, {run['device']}", model, record["date"], path.name, run


def table():
    newest = {}
    for device, model, date, name, run in runs():
        newest[device, model] = (date, name, run)
    lines = ["| device | model | batch | ms per token | percent of floor | floor's read ceiling | recorded |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for (device, model), (date, name, run) in sorted(newest.items(), key=lambda i: (i[0][0], -i[1][2]["weight_bytes"])):
        for r in run["results"]:
            lines.append(f"| {device} | {model} | {r['batch_size']} | {r['ms_per_token']['median']:.3f} | "
                         f"{r['percent_of_floor']:.0f} % | {r['read_floor_tb_s']:.3g} TB/s | "
                         f"[{date[:10]}](bench/results/{name}) |")
    return "\n".join(lines)


def main():
    text = table()
    if "--write" not in sys.argv[1:]:
        print(text)
        return
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    head, rest = old.split(BEGIN)
    tail = rest.split(END)[1]
    readme.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
