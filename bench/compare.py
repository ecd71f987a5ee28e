#!/usr/bin/env python3
"""One card, one go: quern, transformers and llama.cpp on the same models, each against the floor.

    bench/compare.py                                         everything in tests/gpu/configs
    bench/compare.py --models qwen3-8b,llama-3.2-1b --skip llama.cpp --budget 540
    bench/compare.py --gguf qwen3-8b=/models/qwen3-8b-bf16.gguf

Greedy decoding at batch 1 in bf16 with made-up weights: `quern bench latency --load-format dummy`;
bench/transformers_decode.py (torch.compile, static cache, CUDA graphs) where torch and transformers are
installed; `llama-bench` where it is on PATH and a GGUF file is given. The floor of a model is what a
step must read (weights and KV cache, as quern counts them) over the read ceiling that quern measured in
the same run. A step that fails, takes too long or is faster than memory is recorded as failed, with its
reason, and the rest goes on. The record, compare-DATE.json in bench/results/ (or in OUT, if set), is
written anew after every step. Exit status: 0 if nothing failed, 1 otherwise, 2 for wrong usage.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import records
from records import ROOT

HERE = pathlib.Path(__file__).resolve().parent
# Nothing reads faster than memory; this much is the clock's and the ceiling's own error.
TOLERANCE = 0.03


class Failed(Exception):
    """A step did not come to a figure; str() says why."""


class Skipped(Exception):
    """A step has nothing to run."""


def run(argv, limit):
    """stdout of a command in a process group of its own, which is gone afterwards: compilers that torch
    started would outlive it and hold the card."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            p = subprocess.Popen([str(a) for a in argv], cwd=ROOT, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                 start_new_session=True)
        except OSError as e:
            raise Failed(f"{argv[0]}: {e.strerror}") from e
        try:
            code = p.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        out.seek(0)
        err.seek(0)
        text, said = (f.read().decode(errors="replace") for f in (out, err))
    if code is None:
        raise Failed(f"no end after {limit:g} s")
    if code != 0:
        lines = [line for line in said.splitlines() if line.strip()]
        raise Failed(f"exit status {code}: {lines[-1][:300] if lines else 'nothing on stderr'}")
    return text


def last_object(text):
    """The JSON at the end of what a program printed."""
    lines = text.strip().splitlines()
    for first in range(len(lines)):
        try:
            return json.loads("\n".join(lines[first:]))
        except ValueError:
            continue
    raise Failed("no JSON on stdout")


# ---- the systems: each gives an entry with "ms_per_token", or raises ----

def measure_quern(options, model, _):
    """The run with the middle median."""
    argv = [options.quern, "bench", "latency", "--model", options.configs / model, "--load-format", "dummy", "--dtype",
            "bfloat16", "--backend", options.backend, "--batch-size", 1, "--input-len", options.input_len,
            "--output-len", options.output_len, "--format", "json"]
    runs = [last_object(run(argv, options.timeout_quern)) for _ in range(options.repeat)]
    runs.sort(key=lambda r: r["results"][0]["ms_per_token"]["median"])
    middle = runs[(len(runs) - 1) // 2]
    return {"ms_per_token": middle["results"][0]["ms_per_token"]["median"], "result": middle}


def measure_transformers(options, model, _):
    """The better of its two ways to be asked: a token at a time, or all at once."""
    if not options.have_torch:
        raise Skipped(f"{options.python}: no torch and transformers")
    argv = [options.python, HERE / "transformers_decode.py", options.configs / model, "--input-len", options.input_len,
            "--output-len", options.output_len, "--device", options.backend]
    r = last_object(run(argv, options.timeout_transformers))
    return {"ms_per_token": min(r["ms_per_token"]["median"], r["ms_per_token_unread"]), "result": r}


def llama_bench(options, gguf, more):
    argv = ["llama-bench", "-m", gguf, "-p", 0, "-n", options.output_len, "-r", options.repeat, "-ngl", 99, "-o",
            "json"] + more
    tests = [t for t in last_object(run(argv, options.timeout_llama)) if t.get("n_gen")]
    if not tests:
        raise Failed("llama-bench measured no generation")
    return tests[0]


def measure_llama(options, model, floor):
    if shutil.which("llama-bench") is None:
        raise Skipped("no llama-bench on PATH")
    if model not in options.gguf:
        raise Skipped(f"no --gguf {model}=PATH")
    gguf = options.gguf[model]
    if not gguf.is_file():
        raise Failed(f"no file {gguf}")
    try:  # after a prompt, with flash attention; older releases know neither option
        r = llama_bench(options, gguf, ["-fa", 1, "-d", options.input_len])
    except Failed as e:
        if "exit status" not in str(e):
            raise
        r = llama_bench(options, gguf, [])
    size, want = r.get("model_size"), floor.get("weight_bytes")
    if size and want and abs(size / want - 1) > 0.1:
        raise Failed(f"the GGUF file has {size / 1e9:.2f} GB of weights, the model {want / 1e9:.2f} GB: other work")
    return {"ms_per_token": 1e3 / statistics.median(r.get("samples_ts") or [r["avg_ts"]]), "result": r}


SYSTEMS = {"quern": measure_quern, "transformers": measure_transformers, "llama.cpp": measure_llama}


# ---- the whole ----

def floor_of(quern_run):
    """{} without a run of quern."""
    if quern_run is None:
        return {}
    r = quern_run["results"][0]
    ceiling = r["read_floor_tb_s"]
    return {"bytes_per_step": r["bytes_per_step"], "weight_bytes": quern_run["weight_bytes"],
            "read_ceiling_tb_s": ceiling, "ms": r["bytes_per_step"] / ceiling / 1e9 if ceiling > 0 else None}


def judge(entry, floor, backend):
    """Adds the share of the floor; a figure below it is no figure. (On a CPU the ceiling moves from one
    second to the next, and caches hold what is small.)"""
    if floor.get("ms") is None:
        return
    entry["percent_of_floor"] = 100 * floor["ms"] / entry["ms_per_token"]
    if backend == "cuda" and entry["ms_per_token"] < (1 - TOLERANCE) * floor["ms"]:
        raise Failed(f"{entry['ms_per_token']:.3f} ms is faster than the floor of {floor['ms']:.3f} ms")


def step(options, system, model, floor):
    start = time.monotonic()
    entry = {}
    try:
        if system in options.skip:
            raise Skipped("not asked for")
        if start - options.start > options.budget:
            raise Skipped("the budget of time was spent")
        entry = SYSTEMS[system](options, model, floor)
        judge(entry, floor_of(entry["result"]) if system == "quern" else floor, options.backend)
        entry["status"] = "ok"
    except Skipped as e:
        entry = {"status": "skipped", "reason": str(e)}
    except Failed as e:
        entry.update(status="failed", reason=str(e))
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as e:
        entry.update(status="failed", reason=f"its output is not what was expected: {type(e).__name__} {e}")
    entry["seconds"] = round(time.monotonic() - start, 2)
    return entry


def line(model, system, entry):
    if entry["status"] != "ok":
        return f"{model:16} {system:14} {entry['status']:>9}  {entry['reason'][:100]}"
    share = f"{entry['percent_of_floor']:8.1f}%" if "percent_of_floor" in entry else f"{'-':>9}"
    return f"{model:16} {system:14} {entry['ms_per_token']:9.3f} {share} {entry['seconds']:8.1f} s"


def device_of(entries):
    for entry in entries.values():
        if entry["status"] == "ok" and isinstance(entry["result"], dict) and "device" in entry["result"]:
            return entry["result"]["device"].split(",")[0]
    return ""


def compare(options):
    record = {**records.head(options.quern), "command": " ".join(sys.argv), "device": "", "batch_size": 1,
              "input_len": options.input_len, "output_len": options.output_len, "dtype": "bfloat16", "models": {}}
    name = options.name or "compare-" + record["date"].translate({ord(c): None for c in "-:Z"}).replace("T", "-")
    failed = 0
    print(f"{'model':16} {'system':14} {'ms/token':>9} {'of floor':>9} {'took':>8}", flush=True)
    for model in options.models:
        part = record["models"][model] = {"floor": {}, "systems": {}}
        for system in SYSTEMS:
            entry = part["systems"][system] = step(options, system, model, part["floor"])
            if system == "quern" and entry["status"] == "ok":
                part["floor"] = floor_of(entry["result"])
            failed += entry["status"] == "failed"
            record["device"] = record["device"] or device_of(part["systems"])
            print(line(model, system, entry), flush=True)
            path = records.write(record, name)
        if part["floor"]:
            print(f"{model:16} {'the floor':14} {part['floor']['ms']:9.3f} {'':9} read ceiling "
                  f"{part['floor']['read_ceiling_tb_s']:.3f} TB/s", flush=True)
    print(f"recorded in {path}")
    return 1 if failed else 0


def models_in(folder):
    """Largest config first, so that a budget that ends early has seen what matters most."""
    def size(path):
        c = json.loads(path.read_text(encoding="utf-8"))
        return c.get("num_hidden_layers", 0) * c.get("hidden_size", 0) * (c.get("intermediate_size") or 0)
    return [p.parent.name for p in sorted(folder.glob("*/config.json"), key=lambda p: (-size(p), p))]


def parse():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--models", help="names of folders in --configs, separated by commas (all, the largest first)")
    a.add_argument("--configs", type=pathlib.Path, default=pathlib.Path("tests/gpu/configs"),
                   help="folder of folders with a config.json (tests/gpu/configs)")
    a.add_argument("--skip", default="", metavar="SYSTEM,...", help=f"of {', '.join(SYSTEMS)}")
    a.add_argument("--quern", type=pathlib.Path, default=ROOT / "build" / "quern", help="the program (build/quern)")
    a.add_argument("--python", default=sys.executable, help="interpreter that has torch and transformers (this one)")
    a.add_argument("--gguf", action="append", default=[], metavar="MODEL=PATH",
                   help="a bf16 GGUF file of that model for llama-bench; may be given again")
    a.add_argument("--backend", choices=["cuda", "cpu"], default="cuda", help="cpu: a trial without a GPU (cuda)")
    a.add_argument("--input-len", type=int, default=64, help="tokens of the prompt (64)")
    a.add_argument("--output-len", type=int, default=512, help="tokens to generate (512)")
    a.add_argument("--repeat", type=int, default=3, help="runs of quern and of llama-bench; the middle one counts (3)")
    a.add_argument("--timeout-quern", type=float, default=180, metavar="S", help="of one run, kernels' compilation "
                   "included (180)")
    a.add_argument("--timeout-transformers", type=float, default=300, metavar="S", help="compilation included (300)")
    a.add_argument("--timeout-llama", type=float, default=180, metavar="S", help="(180)")
    a.add_argument("--budget", type=float, default=float("inf"), metavar="S", help="start no step after so many "
                   "seconds (no limit)")
    a.add_argument("--name", help="of the file, without .json (compare- and the date)")
    options = a.parse_args()
    known = models_in(ROOT / options.configs)
    options.models = options.models.split(",") if options.models else known
    for model in options.models:
        if model not in known:
            a.error(f"no model {model} in {options.configs}: there are {', '.join(known)}")
    options.skip = {s for s in options.skip.split(",") if s}
    if options.skip - set(SYSTEMS):
        a.error(f"--skip: the systems are {', '.join(SYSTEMS)}")
    for item in options.gguf:
        if item.partition("=")[0] not in options.models or not item.partition("=")[2]:
            a.error(f"--gguf {item}: want MODEL=PATH with one of {', '.join(options.models)}")
    options.gguf = {i.partition("=")[0]: pathlib.Path(i.partition("=")[2]).expanduser().resolve() for i in options.gguf}
    if min(options.input_len, options.repeat) < 1 or options.output_len < 2:
        a.error("want a prompt of 1, an output of 2 tokens and 1 run at least")
    options.quern = options.quern.resolve()
    options.start = time.monotonic()
    return options


def has_torch(python):
    try:
        run([python, "-c", "import torch, transformers"], 120)
    except Failed:
        return False
    return True


def main():
    options = parse()
    options.have_torch = "transformers" not in options.skip and has_torch(options.python)
    return compare(options)


if __name__ == "__main__":
    sys.exit(main())
