#!/usr/bin/env python3
"""Compares builds of quern on one machine, in turns: what a change is worth.

    bench/ab.py before=/elsewhere/quern after=build/quern --models qwen3-8b,qwen3-0.6b --batch-size 1,8
    bench/ab.py 7=build/quern 9=build/quern,QN_CUDA_FLIGHT=9 --rounds 3
    bench/ab.py whole=build/quern pieces=build/quern,attention=pieces --batch-size 8,16

Each word is NAME=PROGRAM, then settings, with commas between: QN_... of its environment, others are
compile options. In a round every
program measures every model once, with made-up weights; what drifts meets all of them. Prints the
middle round of each in ms per token, in percent of the first program's, between which rounds it lay, of
the floor, and the first token's ms. --record NAME writes all rounds to bench/results/NAME.json (OUT, if
set, replaces the folder).
"""
import argparse
import os
import pathlib
import sys

import records


def build_of(word):
    name, _, rest = word.partition("=")
    program, *settings = rest.split(",")
    if not name or not program or any("=" not in s for s in settings):
        raise argparse.ArgumentTypeError(f"{word}: want NAME=PROGRAM[,SETTING=VALUE...]")
    if not os.access(program, os.X_OK):
        raise argparse.ArgumentTypeError(f"{program}: no program")
    return name, pathlib.Path(program).resolve(), dict(s.split("=", 1) for s in settings)


def measure(options, program, settings, model):
    """The result of each batch size; words instead of them if it failed."""
    environment = {k: v for k, v in settings.items() if k.startswith("QN_")}
    compile_options = ",".join(f"{k}={v}" for k, v in settings.items() if k not in environment)
    more = ["--compile-options", compile_options] if compile_options else []
    more += ["--max-model-len", options.max_model_len] if options.max_model_len else []
    run = records.bench_latency(options, program, model, options.batch_size, environment, more)
    return run if isinstance(run, str) else run["results"]


def middle(values):
    return sorted(values)[len(values) // 2]


def print_batch(options, rounds, model, i):
    """A batch size of a model, a line for each program."""
    base = None
    for name, _, _ in options.builds:
        results = [r[model][name] for r in rounds]
        failed = [r for r in results if isinstance(r, str)]
        results = [r[i] for r in results if not isinstance(r, str) and r[i]["steps"]]
        if failed or not results:
            print(f"{model:14} {name:16} {failed[0][:90] if failed else 'never all in flight'}")
            continue
        ms = [r["ms_per_token"]["median"] for r in results]
        base = base or middle(ms)
        print(f"{model:14} {name:16} {results[0]['batch_size']:5} {middle(ms):9.4f} {100 * middle(ms) / base:8.2f}% "
              f"{min(ms):9.4f} {max(ms):9.4f} {middle([r['percent_of_floor'] for r in results]):8.1f}% "
              f"{middle([r['ttft_ms'] for r in results]):9.2f}")


def parse():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("builds", nargs="+", type=build_of, metavar="NAME=PROGRAM[,SETTING=VALUE...]")
    a.add_argument("--models", default="qwen3-8b", help="names of folders in --configs, separated by commas (qwen3-8b)")
    a.add_argument("--configs", type=pathlib.Path, default=pathlib.Path("tests/gpu/configs"),
                   help="folder of folders with a config.json (tests/gpu/configs)")
    a.add_argument("--backend", default="cuda", choices=["cpu", "cuda"])
    a.add_argument("--batch-size", default="1", help="separated by commas (1)")
    a.add_argument("--input-len", type=int, default=64, help="tokens per prompt (64)")
    a.add_argument("--output-len", type=int, default=192, help="tokens to generate (192)")
    a.add_argument("--max-model-len", type=int, help="of the program (input and output)")
    a.add_argument("--rounds", type=int, default=2, help="(2)")
    a.add_argument("--timeout", type=int, default=60, help="seconds of one run (60)")
    a.add_argument("--record", metavar="NAME", help="write all rounds to NAME.json")
    options = a.parse_args()
    if len({b[0] for b in options.builds}) < len(options.builds):
        a.error("two builds have the same name")
    if options.rounds < 1:
        a.error("--rounds: want 1 or more")
    return options


def main():
    options = parse()
    models, rounds = options.models.split(","), []
    for _ in range(options.rounds):
        rounds.append({model: {name: measure(options, program, settings, model)
                               for name, program, settings in options.builds} for model in models})
    print(f"{'model':14} {'build':16} {'batch':>5} {'ms/token':>9} {'of first':>9} {'least':>9} {'most':>9} "
          f"{'of floor':>9} {'first ms':>9}")
    for model in models:
        for i in range(len(options.batch_size.split(","))):
            print_batch(options, rounds, model, i)
    if options.record:
        record = {**records.head(options.builds[-1][1]), "command": " ".join(sys.argv),
                  "builds": {name: {"commit": records.commit(program), "settings": settings}
                             for name, program, settings in options.builds}, "rounds": rounds}
        print(f"recorded in {records.write(record, options.record)}")
    return any(isinstance(r, str) for one in rounds for by in one.values() for r in by.values())


if __name__ == "__main__":
    sys.exit(main())
