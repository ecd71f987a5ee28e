#!/usr/bin/env python3
"""What each mechanism is worth: the same benchmark with one of them off or on at a time, in one run.

    bench/ablations.py --quern build/quern --models qwen3-8b,qwen3-0.6b --backend cuda [--repeat 2]
    bench/ablations.py --only transport          rows whose name has that word, besides the default
    bench/ablations.py --list                    the rows

Every row is a compile option or, for what the loader does at run time, a setting in the environment;
what a backend does not have is recorded as an error and the rest goes on. Writes
bench/results/ablations-BACKEND.json (OUT, if set, replaces the folder; --only adds its words to the
name) after each row, and prints a table: ms per token at batch 1, in percent of the default and of the
floor.
"""
import argparse
import pathlib
import sys

import records
from records import ROOT

# name, compile options, environment, backends that have it (batch: with several requests only;
# single: with one).
# On CUDA the default is: everything AOT, coarse events, QKV's heads with the attention, short
# contexts not in pieces, data as flag up to 64 KB, flight by the memory's rate. Without event fusion
# 132 workers get some ten million tasks, most of them empty: no row there.
VARIANTS = [
    ("default", "", {}, "cpu cuda"),
    ("operator barriers (coarse events)", "events=coarse", {}, "cpu"),
    ("events between tiles (fine events)", "events=fine", {}, "cuda"),
    ("no event fusion", "event-fusion=off", {}, "cpu"),
    ("JIT only", "launch=jit", {}, "cpu cuda"),
    ("AOT only", "launch=aot", {}, "cpu"),
    ("the paper's JIT rule", "launch=paper", {}, "cpu cuda"),
    ("attention handed out at run time", "launch=hybrid", {}, "cuda"),
    ("QKV in two operators", "qkv=split", {}, "cpu cuda"),
    ("QKV's heads with the attention", "qkv=joined", {}, "cpu"),
    ("counters only (no transport)", "carry-bytes=0", {}, "cuda"),
    ("data as flag (transport) up to 32 KB", "carry-bytes=32768", {}, "cuda"),
    ("data as flag (transport) up to 128 KB", "carry-bytes=131072", {}, "cuda"),
    ("flight 16 KB", "", {"QN_CUDA_FLIGHT": "2"}, "cuda"),
    ("flight 64 KB", "", {"QN_CUDA_FLIGHT": "8"}, "cuda"),
    ("flight not deeper in the midst of tasks", "", {"QN_CUDA_FLIGHT_DEEP": "1"}, "cuda"),
    ("no L2 set aside for activations", "", {"QN_CUDA_KEEP": "0"}, "cuda"),
    ("no flight cap (128 KB, the most)", "", {"QN_CUDA_FLIGHT": "16"}, "cuda"),
    ("no streaming across iterations", "", {"QN_CUDA_STREAM": "1"}, "cuda"),
    ("no streaming across tasks", "", {"QN_CUDA_STREAM": "0"}, "cuda"),
    ("short contexts in pieces, too", "attention=pieces", {}, "cuda batch"),
    ("short contexts of one request in pieces", "attention=batch", {}, "cuda single"),
    # Of cards with 132 multiprocessors: nobody is left to be ready first.
    ("attention in as many tasks as workers", "tile.attention_step=0x132,tile.attention_whole=0x132", {}, "cuda single"),
    ("all operators on all workers", "workers=all", {}, "cuda single"),
    ("O and down not in parts", "linear=whole", {}, "cuda batch"),
]


def measure(options, model, compile_options, environment):
    """The best of the runs."""
    more = ["--compile-options", compile_options] if compile_options else []
    best = None
    for _ in range(options.repeat):
        run = records.bench_latency(options, options.quern, model, options.batch_size, environment, more)
        if isinstance(run, str):
            return {"error": run}
        one = {**run["results"][0], "device": run["device"]}
        if best is None or one["ms_per_token"]["median"] < best["ms_per_token"]["median"]:
            best = one
    return best


def chosen(options):
    words = [w for w in (options.only or "").split(",") if w]
    for name, compile_options, environment, backends in VARIANTS:
        if ("single" if options.batch_size > 1 else "batch") in backends.split():
            continue
        if options.backend in backends.split() and (not words or name == "default" or any(w in name for w in words)):
            yield name, compile_options, environment


def parse():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quern", type=pathlib.Path, default=ROOT / "build" / "quern", help="the program (build/quern)")
    a.add_argument("--models", default="qwen3-0.6b", help="names of folders in --configs, separated by commas")
    a.add_argument("--configs", type=pathlib.Path, default=pathlib.Path("tests/gpu/configs"),
                   help="folder of folders with a config.json (tests/gpu/configs)")
    a.add_argument("--backend", default="cuda", choices=["cpu", "cuda"])
    a.add_argument("--only", metavar="WORD,...", help="rows whose name has one of these words")
    a.add_argument("--list", action="store_true", help="print the rows and exit")
    a.add_argument("--batch-size", type=int, default=1, help="requests (1)")
    a.add_argument("--output-len", type=int, default=128, help="tokens to generate (128)")
    a.add_argument("--repeat", type=int, default=1, help="runs of each row; the best counts (1)")
    a.add_argument("--timeout", type=int, default=60, help="seconds of one run (60)")
    options = a.parse_args()
    if len(list(chosen(options))) == 1 and options.only:
        a.error(f"--only {options.only}: no row has that in its name; --list prints them")
    options.quern, options.input_len = options.quern.resolve(), 64
    return options


def main():
    options = parse()
    if options.list:
        for name, compile_options, environment in chosen(options):
            print(f"{name:40} {compile_options} {' '.join('='.join(e) for e in environment.items())}".rstrip())
        return 0
    record = {**records.head(options.quern), "command": " ".join(sys.argv), "batch_size": options.batch_size,
              "input_len": options.input_len, "output_len": options.output_len, "models": {}}
    file = f"ablations-{options.backend}"
    if options.batch_size > 1:
        file += f"-batch{options.batch_size}"
    if options.only:
        file += "-" + options.only.replace(",", "-").replace(" ", "-")
    for model in options.models.split(","):
        rows = record["models"][model] = {}
        base = None
        print(f"{model:42} {'ms/token':>9} {'of default':>10} {'of floor':>9}", flush=True)
        for name, compile_options, environment in chosen(options):
            r = rows[name] = measure(options, model, compile_options, environment)
            if "error" in r:
                print(f"  {name:40} {r['error'][:70]}", flush=True)
            else:
                record["device"] = r.pop("device")
                ms = r["ms_per_token"]["median"]
                base = base or ms
                print(f"  {name:40} {ms:9.3f} {100 * ms / base:9.1f}% {r['percent_of_floor']:8.1f}%", flush=True)
            path = records.write(record, file)
    print(f"recorded in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
