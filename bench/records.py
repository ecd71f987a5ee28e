"""What the scripts of this folder share: where results lie, what every record begins with, and the
runs on record."""
import datetime
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def commit(quern):
    """Of the binary: what the file COMMIT beside it says, where it was built elsewhere, or the checkout's."""
    note = pathlib.Path(quern).resolve().parent / "COMMIT"
    if note.exists():
        return note.read_text(encoding="utf-8").strip()
    try:
        p = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return p.stdout.strip()


def head(quern):
    """The first fields of a record."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"date": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit(quern)}


def write(record, name):
    """Into the folder OUT, if set, or bench/results, whole or not at all; returns the path."""
    folder = pathlib.Path(os.environ.get("OUT") or RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    half = path.with_suffix(".part")
    half.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    half.replace(path)
    return path


def bench_latency(options, program, model, batch_size, environment, more=()):
    """What `quern bench latency` prints of a model with made-up weights; words instead if it failed."""
    command = [program, "bench", "latency", "--model", options.configs / model, "--load-format", "dummy", "--backend",
               options.backend, "--batch-size", batch_size, "--input-len", options.input_len, "--output-len",
               options.output_len, "--format", "json", *more]
    try:
        p = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True,
                           timeout=options.timeout, env={**os.environ, **environment})
    except subprocess.TimeoutExpired:
        return f"no end after {options.timeout} s"
    if p.returncode != 0:
        return p.stderr.strip().splitlines()[-1] if p.stderr.strip() else f"exit status {p.returncode}"
    return json.loads(p.stdout)


def read_all(folder=None):
    """(file name, record) of everything on record, oldest first."""
    found = []
    for path in sorted((folder or RESULTS).glob("*.json")):
        found.append((path.name, json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda f: f[1].get("date", ""))


def systems(record):
    """(model, system, entry) of a record of bench/compare.py; nothing of others."""
    for model, part in record.get("models", {}).items():
        if isinstance(part, dict):
            for system, entry in part.get("systems", {}).items():
                yield model, system, entry


def quern_runs(folder=None):
    """(device, model, date, file name, run) of quern's decode benchmarks, oldest first; a run is what
    `quern bench latency --format json` printed. From tests/gpu/run, bench/compare.py and bench/run.py."""
    for name, record in read_all(folder):
        for model, part in record.get("parts", {}).get("bench", {}).items():
            if "result" in part:
                yield part["result"]["device"].split(",")[0], model, record["date"], name, part["result"]
        for model, system, entry in systems(record):
            if system == "quern" and entry["status"] == "ok" and entry["result"]["backend"] == "cuda":
                yield entry["result"]["device"].split(",")[0], model, record["date"], name, entry["result"]
        if name.startswith("cpu-"):
            for model, run in record["models"].items():
                yield f"{record['cpu']}, {run['device']}", model, record["date"], name, run


def peers(folder=None):
    """(name, record) of the newest peers-*.json: quern and other systems on one card, as they were noted;
    record["peers"][model][system][batch] is milliseconds per decode step."""
    found = [f for f in read_all(folder) if f[0].startswith("peers-")]
    return found[-1] if found else ("", {"device": "", "date": "", "versions": {}, "peers": {}})
