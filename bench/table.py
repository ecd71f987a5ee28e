#!/usr/bin/env python3
"""Draws the README's table of speeds from the newest recorded results.

    bench/table.py            prints it
    bench/table.py --write    puts it between the marks in README.md
    bench/table.py --check    exit status 1 if README.md has another one

Reads bench/results: gpu-*.json (tests/gpu/run), compare-*.json (bench/compare.py) and cpu-*.json
(bench/run.py), of which per device the newest file that measured a model wins; and the newest
peers-*.json, whose figures stand beside the row of their card. Nothing is computed but what stands in
those files.
"""
import sys

import records

BEGIN, END = "<!-- bench/table.py writes this table -->", "<!-- end of table -->"

# How a device's name begins, model, requests.
ROWS = [("NVIDIA H100", "qwen3-8b", 1), ("NVIDIA H100", "qwen3-8b", 8), ("NVIDIA H100", "qwen3-8b", 16),
        ("NVIDIA H100", "qwen3-8b", 64), ("NVIDIA H100", "qwen3-1.7b", 1), ("NVIDIA H100", "llama-3.2-1b", 1),
        ("NVIDIA H100", "qwen3-0.6b", 1), ("NVIDIA H200", "qwen3-8b", 1), ("NVIDIA H200", "qwen3-8b", 16),
        ("AMD EPYC", "qwen3-0.6b", 1)]
PEERS = ["quern", "vLLM", "llama.cpp"]


def link(name, date):
    return f"[{date[:10]}](bench/results/{name})"


def find(runs, device, model, batch):
    """The newest (device, date, file name, result) of a row; None: it is not on record."""
    newest = None
    for name_of_device, name_of_model, date, file, run in runs:
        for r in run["results"]:
            if name_of_device.startswith(device) and name_of_model == model and r["batch_size"] == batch \
                    and r.get("steps", 1) != 0:  # 0: never all in flight
                newest = (name_of_device, date, file, r)
    return newest


def table():
    runs, used = list(records.quern_runs()), {}
    peers_file, peers = records.peers()
    versions = peers["versions"]
    heads = " | ".join(f"{p} {versions[p]}" if p in versions else p for p in PEERS)
    lines = [f"| device | model | requests | ms per step | of floor | side by side: {heads} |",
             "| --- | --- | --- | --- | --- |" + " --- |" * len(PEERS)]
    for device, model, batch in ROWS:
        row = find(runs, device, model, batch)
        if row is None:
            continue
        name, date, file, r = row
        used.setdefault(name, (file, date))
        beside = peers["peers"].get(model, {}) if name == peers["device"] else {}
        figures = [beside.get(p, {}).get(str(batch)) for p in PEERS]
        lines.append(f"| {name} | {model} | {batch} | {r['ms_per_token']['median']:.3f} | {r['percent_of_floor']:.0f} % |"
                     + "".join(" |" if f is None else f" {f:.{2 if f >= 1 else 3}f} |" for f in figures))
    recorded = [f"{name} {link(*file)}" for name, file in used.items()]
    if peers_file:
        recorded.append(f"side by side, in one call on the {peers['device']}, {link(peers_file, peers['date'])}")
    return "\n".join([*lines, "", "Recorded: " + ";\n".join(recorded) + "."])


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
