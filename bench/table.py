#!/usr/bin/env python3
"""Draws the README's table of speeds from the newest recorded results.

    bench/table.py            prints it
    bench/table.py --write    puts it between the marks in README.md
    bench/table.py --check    exit status 1 if README.md has another one

Reads bench/results: gpu-*.json (tests/gpu/run), compare-*.json (bench/compare.py) and cpu-*.json
(bench/run.py): per device the newest file that measured a model wins. Nothing is computed but what
stands in those files.
"""
import sys

import records

BEGIN, END = "<!-- bench/table.py writes this table -->", "<!-- end of table -->"


def table():
    newest = {}
    for device, model, date, name, run in records.quern_runs():
        newest[device, model] = (date, name, run)
    lines = ["| device | model | batch | ms per token | percent of floor | floor's read ceiling | recorded |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for (device, model), (date, name, run) in sorted(newest.items(), key=lambda i: (i[0][0], -i[1][2]["weight_bytes"])):
        for r in run["results"]:
            if r.get("steps", 1) == 0:  # never all in flight
                continue
            lines.append(f"| {device} | {model} | {r['batch_size']} | {r['ms_per_token']['median']:.3f} | "
                         f"{r['percent_of_floor']:.0f} % | {r['read_floor_tb_s']:.3g} TB/s | "
                         f"[{date[:10]}](bench/results/{name}) |")
    return "\n".join(lines)


def main():
    if sys.argv[1:] not in ([], ["--write"], ["--check"]):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    text = table()
    if not sys.argv[1:]:
        print(text)
        return 0
    readme = records.ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    before, rest = old.split(BEGIN)
    new = f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"
    if sys.argv[1] == "--check":
        if new != old:
            print("README.md: the table is not that of bench/results; bench/table.py --write makes it so")
        return int(new != old)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
