#!/usr/bin/env python3
"""Measures quern with made-up weights and records what came of it.

    bench/run.py --models qwen3-0.6b --backend cpu --batch-size 1,8 --output-len 64 [--repeat 3]

Runs `quern bench latency` on the configurations of tests/gpu/configs and writes one JSON file to
bench/results/ with device, date, commit, command and, per model, the run whose batch-1 median is the
middle one. The read ceiling stands beside every figure and is from the same run. Prints a table.
"""
import argparse
import json
import math
import os
import pathlib
import platform
import subprocess
import sys

import records
from records import ROOT


def cpu_name():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def median_of(result):
    return result["ms_per_token"]["median"] if result["steps"] else math.inf


def measure(options, model):
    command = [str(options.quern), "bench", "latency", "--model", f"tests/gpu/configs/{model}",
               "--load-format", "dummy", "--backend", options.backend, "--batch-size", options.batch_size,
               "--input-len", str(options.input_len), "--output-len", str(options.output_len),
               "--format", "json"] + options.extra
    runs = []
    for _ in range(options.repeat):
        p = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if p.returncode != 0:
            sys.exit(f"{' '.join(command)}: {p.stderr.strip()}")
        runs.append(json.loads(p.stdout))
    runs.sort(key=lambda r: median_of(r["results"][0]))
    return command, runs[len(runs) // 2]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quern", type=pathlib.Path, default=ROOT / "build" / "quern")
    a.add_argument("--models", default="qwen3-0.6b")
    a.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    a.add_argument("--batch-size", default="1,8")
    a.add_argument("--input-len", type=int, default=64)
    a.add_argument("--output-len", type=int, default=64)
    a.add_argument("--repeat", type=int, default=3)
    a.add_argument("--name", help="of the file; default: backend and date")
    a.add_argument("extra", nargs="*", help="more options for quern, after --")
    options = a.parse_args()
    record = {**records.head(options.quern), "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "models": {}}
    print(f"{'model':14} {'batch':>5} {'ms/token':>9} {'p99':>9} {'tokens/s':>9} {'of floor':>9} "
          f"{'ceiling':>10} {'ttft ms':>8}")
    for model in options.models.split(","):
        command, run = measure(options, model)
        record["command"], record["device"] = command[1:], run["device"]
        record["models"][model] = run
        for r in run["results"]:
            if not r["steps"]:
                print(f"{model:14} {r['batch_size']:5} never all in flight")
                continue
            print(f"{model:14} {r['batch_size']:5} {r['ms_per_token']['median']:9.3f} "
                  f"{r['ms_per_token']['p99']:9.3f} {r['tokens_per_s']:9.1f} "
                  f"{r['percent_of_floor']:8.1f}% {r['read_floor_tb_s'] * 1e3:7.1f} GB/s {r['ttft_ms']:8.1f}")
    name = options.name or f"{options.backend}-{record['date'][:10]}"
    print(f"recorded in {records.write(record, name)}")


if __name__ == "__main__":
    main()
