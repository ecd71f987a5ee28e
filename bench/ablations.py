#!/usr/bin/env python3
"""What each mechanism is worth: the same benchmark with one of them off at a time, in one run.

    bench/ablations.py --quern build/quern --models qwen3-8b,qwen3-0.6b --backend cuda [--repeat 2]

Every variant is a compile option or, for what the loader does at run time, a setting in the
environment. Writes bench/results/ablations-<backend>.json (OUT, if set, replaces the folder) and prints
a table: ms per token at batch 1, and in percent of the default.
"""
import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name, compile options, environment, backends that have it
VARIANTS = [
    ("default", "", {}, "cpu cuda"),
    ("operator barriers (coarse events)", "events=coarse", {}, "cpu"),
    ("events between tiles (fine events)", "events=fine", {}, "cuda"),
    ("no event fusion", "event-fusion=off", {}, "cpu"),
    ("JIT only", "launch=jit", {}, "cpu"),
    ("AOT only", "launch=aot", {}, "cpu"),
    ("the paper's JIT rule", "launch=paper", {}, "cpu"),
    ("attention handed out at run time", "launch=hybrid", {}, "cuda"),
    ("QKV in one operator", "qkv=fused", {}, "cuda"),
    ("QKV in two operators", "qkv=split", {}, "cpu cuda"),
    ("flight 16 KB", "", {"QN_CUDA_FLIGHT": "2"}, "cuda"),
    ("flight 80 KB (the most)", "", {"QN_CUDA_FLIGHT": "10"}, "cuda"),
    ("no streaming across iterations", "", {"QN_CUDA_SPECULATE": "0"}, "cuda"),
]


def measure(options, model, compile_options, environment):
    command = [str(options.quern), "bench", "latency", "--model", f"tests/gpu/configs/{model}",
               "--load-format", "dummy", "--backend", options.backend, "--batch-size", "1",
               "--input-len", "64", "--output-len", str(options.output_len), "--format", "json"]
    if compile_options:
        command += ["--compile-options", compile_options]
    best = None
    for _ in range(options.repeat):
        try:
            p = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=options.timeout,
                               env={**os.environ, **environment})
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {options.timeout} s"}
        if p.returncode != 0:
            return {"error": p.stderr.strip().splitlines()[-1] if p.stderr.strip() else str(p.returncode)}
        r = json.loads(p.stdout)
        one = {**r["results"][0], "device": r["device"]}
        if best is None or one["ms_per_token"]["median"] < best["ms_per_token"]["median"]:
            best = one
    return best


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quern", type=pathlib.Path, default=ROOT / "build" / "quern")
    a.add_argument("--models", default="qwen3-0.6b")
    a.add_argument("--backend", default="cuda", choices=["cpu", "cuda"])
    a.add_argument("--output-len", type=int, default=128)
    a.add_argument("--repeat", type=int, default=1)
    a.add_argument("--timeout", type=int, default=60)
    options = a.parse_args()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    record = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
              "commit": commit.stdout.strip(), "input_len": 64, "output_len": options.output_len, "models": {}}
    for model in options.models.split(","):
        rows = record["models"][model] = {}
        base = None
        print(f"{model:42} {'ms/token':>9} {'of default':>10} {'of floor':>9}", flush=True)
        for name, compile_options, environment, backends in VARIANTS:
            if options.backend not in backends.split():
                continue
            r = rows[name] = measure(options, model, compile_options, environment)
            if "error" in r:
                print(f"  {name:40} {r['error'][:70]}", flush=True)
                continue
            record["device"] = r.pop("device")
            ms = r["ms_per_token"]["median"]
            base = base or ms
            print(f"  {name:40} {ms:9.3f} {100 * ms / base:9.1f}% {r['percent_of_floor']:8.1f}%", flush=True)
    folder = pathlib.Path(os.environ.get("OUT") or ROOT / "bench" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ablations-{options.backend}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"recorded in {path}")


if __name__ == "__main__":
    sys.exit(main())
