#!/usr/bin/env python3
"""Measures `quern serve` with made-up weights: many streams, a long prompt, streams with a grammar, a stopped host.

    bench/serve_figures.py build/quern FOLDER --record serve-h100 --probe build/tests/grammar_probe
    bench/serve_figures.py build/quern models/tiny --backend cpu --streams 1,4,8 --guided 8 --free 4 --output-len 64 \\
        --max-num-seqs 8 --max-model-len 1024

FOLDER needs a config.json only: without a tokenizer.json in it one of as many tokens is made up. One server does all.
Parts, by --only:

streams  closed loop of --rounds requests a stream, greedy, no end of sequence, clients in processes of their own.
         `whole` is all tokens over all the time; `decode` is the rate between the last stream's first token and the
         first stream's last one, of the first requests; `quern bench serve` is the same load from one thread.
guided   streams with a grammar that cannot end before max_tokens against streams without, in turns; sampled.
masks    CPU time of the thread that makes masks, per token, of the guided part; with --probe that of single masks
         (bench/masks.py) on this machine.
prompt   a prompt of --long-len tokens, alone and again; then the same of another prompt while --free streams decode: its first
         token, and the streams' longest step until then beside their longest before. A step is the time from one event to the
         next by the tokens that this brings: text that is not whole yet waits for the next one.
stop     --free streams without a grammar and one with, alone; then with the thread that makes masks stopped for a
         second; on a GPU also with the whole server stopped for a second. `late` is what a stream takes longer than in the
         run without a stop, a gap is the longest between two tokens, `usual` the tokens of half a second before and after.

The record is written after each part: NAME.json in bench/results (OUT, if set, replaces the folder). Exit status 1:
something failed; a figure that misses what it must show is printed as such and is no failure.
"""
import argparse
import contextlib
import ctypes
import hashlib
import json
import math
import multiprocessing
import os
import pathlib
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import masks
import records

STOP_S = 1.0
READY_S, RUN_S = 120, 60      # limits of the server's start and of one load
STOP_RUN_S = 4.0              # of a stream of the stop part
NAME = "figures"              # of the model in requests
FIRST_ID, LAST_ID = 10, 2000  # of prompts; any vocabulary has them

OBJECT = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
                                           "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}}},
          "required": ["name", "age", "tags"], "additionalProperties": False}


def schema(items, least):
    return {"response_format": {"type": "json_schema", "json_schema": {
        "name": "long", "schema": {"type": "array", "minItems": least, "items": items}}}}


def own_object(i):
    return {**OBJECT, "properties": {**OBJECT["properties"], f"of{i}": {"type": "boolean"}}}


FREE = {"ignore_eos": True}
REGEX = {"structured_outputs": {"regex": "[a-z ]{20000,30000}"}}
KINDS = {"free": lambda i: FREE, "one regex": lambda i: REGEX, "one schema": lambda i: schema(OBJECT, 5000),
         "own schemas": lambda i: schema(own_object(i), 5000 + i)}


# ---- a model folder -----------------------------------------------------------------------------

def letters_of_bytes():
    """The characters that byte-level tokenizers write for bytes."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [b for b in range(256) if b not in seen]
    return {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(unseen)}}


def ids_of(config, key):
    value = config.get(key)
    return [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]


def make_tokenizer(config):
    """Of words by chance, without merges; special tokens where the config has the first and last of them."""
    special = ids_of(config, "bos_token_id") + ids_of(config, "eos_token_id") or [config["vocab_size"] - 1]
    letters = letters_of_bytes()
    words = masks.made_up(min(special) + 1)
    added = [{"id": i, "content": f"<|special_{i}|>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i in range(min(special), max(special) + 1)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    vocabulary = {"".join(letters[b] for b in word): i for i, word in enumerate(words)}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocabulary, "merges": []}}


def make_folder(model, folder):
    """Tokens of the vocabulary."""
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, folder / name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(config)), encoding="utf-8")
    return config["vocab_size"]


# ---- the server ---------------------------------------------------------------------------------

class Server:
    def __init__(self, options, folder):
        self.command = [options.quern, "serve", str(folder), "--load-format", "dummy", "--backend", options.backend, "--port", "0",
                        "--served-model-name", NAME, "--max-num-seqs", str(options.max_num_seqs),
                        "--max-model-len", str(options.max_model_len), *options.serve]
        self.log = folder / "stderr"
        start = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.port = int(self.wait_for(r"listening on http://[^ ]*:(\d+)", start + READY_S).group(1))
            self.wait_for(r"ready: ", start + READY_S)
        except BaseException:
            self.end()
            raise
        self.start_s = time.monotonic() - start

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern, end):
        while True:
            found = re.search(pattern, self.said())
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not say '{pattern}'")
            time.sleep(0.05)

    def end(self):
        """Its exit status; KILL's where it does not end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)

    def mask_thread(self):
        """Its id, 0 if there is none."""
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == "quern-masks":
                return int(task.name)
        return 0

    def masking_s(self):
        """CPU time of the thread that makes masks so far; in ticks of 10 ms where the kernel says no more."""
        thread = self.mask_thread()
        if not thread:
            return 0.0
        task = pathlib.Path(f"/proc/{self.process.pid}/task/{thread}")
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((task / "schedstat").read_text().split()[0]) / 1e9
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def stopped_thread(thread):
    """Stops one thread of another process, and no other, as a debugger does."""
    seize, interrupt, detach, wait_all = 0x4206, 0x4207, 17, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long

    def trace(what):
        if libc.ptrace(what, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    trace(seize)
    trace(interrupt)
    end = time.monotonic() + 5
    while os.waitpid(thread, wait_all | os.WNOHANG)[0] != thread:
        if time.monotonic() > end:
            raise TimeoutError("ptrace: the thread did not stop")
        time.sleep(0.0005)
    try:
        yield
    finally:
        trace(detach)


@contextlib.contextmanager
def stopped_process(process):
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


# ---- clients ------------------------------------------------------------------------------------

def read_answer(request, chunks):
    """What a stream's bytes, with the times when they came, say."""
    left, text = b"", []
    request.update(times=[], counts=[], tokens=0, finish="", status=chunks[0][1].split(b"\r\n", 1)[0].decode() if chunks else "")
    for at, data in chunks:
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            request["tokens"] = (event.get("usage") or {}).get("completion_tokens", request["tokens"])
            choice = (event.get("choices") or [{}])[0]
            request["finish"] = choice.get("finish_reason") or request["finish"]
            if "text" in choice:
                request["times"].append(at)
                request["counts"].append(request["tokens"])
                text.append(choice["text"])
    request["digest"] = hashlib.sha256("".join(text).encode()).hexdigest()
    request["good"] = " 200 " in request["status"] and request["finish"] == "length" and len(request["times"]) > 0
    if not request["good"]:
        request["said"] = b"".join(data for _, data in chunks)[-300:].decode("utf-8", "replace")
    return request


def send(selector, port, lane, left):
    body = left.pop(0)
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request, chunks = {"lane": lane, "sent": time.monotonic()}, []
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    s.setblocking(False)
    selector.register(s, selectors.EVENT_READ, (lane, left, request, chunks))


def run_lanes(port, lanes):
    """Each lane, a number and bodies, sends one request after the other."""
    selector, done, end = selectors.DefaultSelector(), [], time.monotonic() + RUN_S
    for lane, bodies in lanes:
        send(selector, port, lane, list(bodies))
    while selector.get_map() and time.monotonic() < end:
        for key, _ in selector.select(1):
            lane, left, request, chunks = key.data
            try:
                data = key.fileobj.recv(1 << 16)
            except ConnectionError:
                data = b""
            if data:
                chunks.append((time.monotonic(), data))
                continue
            selector.unregister(key.fileobj)
            key.fileobj.close()
            done.append((request, chunks))
            if left:
                send(selector, port, lane, left)
    done += [(key.data[2], key.data[3]) for key in selector.get_map().values()]
    return done


def client(pipe, port, lanes):
    """A process of clients; starts when it is told to."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pipe.recv()
        start, cpu = time.monotonic(), time.process_time()
        done = run_lanes(port, lanes)
        busy = (time.process_time() - cpu) / (time.monotonic() - start)
        pipe.send((busy, [read_answer(request, chunks) for request, chunks in done]))
    except Exception:
        pipe.send((0.0, [{"good": False, "said": traceback.format_exc()}]))


class Load:
    """bodies[lane] are the requests of a stream; the streams are shared out to processes."""

    def __init__(self, port, bodies, processes):
        n, self.clients = min(processes, len(bodies)), []
        fork = multiprocessing.get_context("fork")
        for i in range(n):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=client, args=(theirs, port, list(enumerate(bodies))[i::n]), daemon=True)
            process.start()
            theirs.close()
            self.clients.append((process, ours))
        for _, pipe in self.clients:
            pipe.send("start")

    def result(self):
        """Requests, by lane and time, and the share of its time that the busiest client computed."""
        found, busy, end = [], 0.0, time.monotonic() + RUN_S + 20
        for process, pipe in self.clients:
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    raise EOFError
                share, requests = pipe.recv()
            except EOFError:
                share, requests = 0.0, [{"good": False, "said": "a client did not end"}]
            process.join(5)
            if process.is_alive():
                process.kill()
            busy, found = max(busy, share), found + requests
        bad = [r for r in found if not r["good"]]
        if bad:
            raise RuntimeError(f"{len(bad)} of {len(found)} requests failed; the first: {bad[0].get('status')} {bad[0]['said']}")
        return sorted(found, key=lambda r: (r["lane"], r["sent"])), busy


def body(options, rng, n_tokens, temperature, seed, more):
    prompt = [rng.randrange(FIRST_ID, LAST_ID) for _ in range(options.input_len)]
    return json.dumps({"model": NAME, "prompt": prompt, "max_tokens": n_tokens, "temperature": temperature, "seed": seed,
                       "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, **more}).encode()


def share_of(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else math.nan


def middle(values):
    return share_of(values, 0.5)


def gaps_ms(requests):
    return [1e3 * (b - a) for r in requests for a, b in zip(r["times"], r["times"][1:])]


def decode_rate(requests):
    """Tokens per second while the first requests of all streams decode; NaN where they never did at once."""
    first = {r["lane"]: r for r in reversed(requests)}.values()
    start, end = max(r["times"][0] for r in first), min(r["times"][-1] for r in first)
    n = sum(start < t <= end for r in first for t in r["times"])
    events = sum(len(r["times"]) for r in first)
    return n / (end - start) * sum(r["tokens"] for r in first) / events if end > start else math.nan


def summary(requests, busy):
    tokens = sum(r["tokens"] for r in requests)
    seconds = max(r["times"][-1] for r in requests) - min(r["sent"] for r in requests)
    gaps = gaps_ms(requests)
    return {"tokens": tokens, "events": sum(len(r["times"]) for r in requests), "seconds": seconds, "whole": tokens / seconds,
            "decode": decode_rate(requests), "itl_p50_ms": middle(gaps), "itl_p99_ms": share_of(gaps, 0.99),
            "ttft_p50_ms": middle([1e3 * (r["times"][0] - r["sent"]) for r in requests]),
            "ttft_p99_ms": share_of([1e3 * (r["times"][0] - r["sent"]) for r in requests], 0.99), "client_busy": busy}


# ---- the parts ----------------------------------------------------------------------------------

class Bench:
    def __init__(self, options, server):
        self.options, self.server, self.rng = options, server, random.Random(1)
        self.end = options.end

    def left(self):
        return self.end - time.monotonic()

    def load(self, bodies):
        return Load(self.server.port, bodies, self.options.processes)

    def body(self, n_tokens, temperature=0, seed=0, more=None):
        return body(self.options, self.rng, n_tokens, temperature, seed, FREE if more is None else more)


def bench_serve(bench, n):
    """Tokens per second of `quern bench serve`."""
    o = bench.options
    done = subprocess.run([o.quern, "bench", "serve", "--port", str(bench.server.port), "--served-model-name", NAME, "--num-prompts",
                           str(n * o.rounds), "--max-concurrency", str(n), "--input-len", str(o.input_len), "--output-len",
                           str(o.output_len), "--seed", str(n), "--format", "json", "-q"], capture_output=True, text=True, timeout=RUN_S)
    if done.returncode != 0:
        raise RuntimeError(f"quern bench serve: {done.stderr.strip()[-300:]}")
    made = json.loads(done.stdout)
    return {k: made[k] for k in ("output_throughput", "median_itl_ms", "p99_itl_ms", "median_ttft_ms", "p99_ttft_ms")}


def part_streams(bench):
    o, rows = bench.options, {}
    print(f"\n{'streams':>8} {'whole':>9} {'times':>6} {'decode':>9} {'times':>6} {'itl p50':>8} {'p99 ms':>8} {'ttft p50':>9} "
          f"{'p99 ms':>8} {'client':>7} {'bench serve':>12} {'times':>6}   (tokens/s)")
    for n in o.streams:
        made = summary(*bench.load([[bench.body(o.output_len) for _ in range(o.rounds)] for _ in range(n)]).result())
        made["bench_serve"] = bench_serve(bench, n)
        rows[n] = made
        first = rows[o.streams[0]]
        times = made["times"] = {"whole": made["whole"] / first["whole"], "decode": made["decode"] / first["decode"],
                                 "bench_serve": made["bench_serve"]["output_throughput"] / first["bench_serve"]["output_throughput"]}
        must = {64: 45, 256: 80}.get(n) if o.streams[0] == 1 else None
        print(f"{n:8} {made['whole']:9.0f} {times['whole']:6.1f} {made['decode']:9.0f} {times['decode']:6.1f} {made['itl_p50_ms']:8.3f} "
              f"{made['itl_p99_ms']:8.3f} {made['ttft_p50_ms']:9.1f} {made['ttft_p99_ms']:8.1f} {made['client_busy']:7.0%} "
              f"{made['bench_serve']['output_throughput']:12.0f} {times['bench_serve']:6.1f}"
              + (f"   must: {must} times: {'yes' if times['whole'] >= must else 'NO'}" if must else ""), flush=True)
    return rows


def part_guided(bench):
    o, rates = bench.options, {kind: [] for kind in KINDS}
    for turn in range(o.guided_rounds + 1):  # the first compiles the grammars, and is left out
        for kind, more in list(KINDS.items())[::1 if turn % 2 else -1]:
            if turn > 1 and bench.left() < 60:
                continue
            masking = bench.server.masking_s()
            made = summary(*bench.load([[bench.body(o.output_len, o.temperature, 100 + i, more(i))] for i in range(o.guided)]).result())
            made["mask_us"] = 1e6 * (bench.server.masking_s() - masking) / made["tokens"]
            if turn > 0:
                rates[kind].append(made)
    print(f"\n{o.guided} streams  {'whole':>9} {'ratio':>6} {'least':>6} {'most':>6} {'decode':>9} {'ratio':>6} {'itl p50':>8} {'p99 ms':>8} "
          f"{'masks us a token':>17}")
    result = {"runs": rates}
    for kind, runs in rates.items():
        ratio = {key: [made[key] / free[key] for made, free in zip(runs, rates["free"])] for key in ("whole", "decode")}
        result[kind] = row = {"ratio": middle(ratio["whole"]), "decode_ratio": middle(ratio["decode"]),
                              **{k: middle([r[k] for r in runs]) for k in ("whole", "decode", "itl_p50_ms", "itl_p99_ms", "mask_us")}}
        print(f"{kind:11} {row['whole']:9.0f} {row['ratio']:6.3f} {min(ratio['whole']):6.3f} {max(ratio['whole']):6.3f} {row['decode']:9.0f} "
              f"{row['decode_ratio']:6.3f} {row['itl_p50_ms']:8.3f} {row['itl_p99_ms']:8.3f} {row['mask_us']:17.2f}"
              + ("" if kind == "free" else f"   must: 0.95: {'yes' if row['ratio'] >= 0.95 else 'NO'}"), flush=True)
    return result


def part_masks(bench):
    if not bench.options.probe:
        print("\nmasks: no --probe; /metrics has no times of masks")
        return {"note": "no --probe"}
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("masks.py"), bench.options.probe], capture_output=True,
                          text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"bench/masks.py: {done.stderr.strip()[-300:]}")
    print(f"\nmasks: {done.stdout.strip()}   must: p50 100 us, p99 2 ms")
    return {"said": done.stdout.strip()}


def stop_run(bench, bodies, stopped, after):
    """Of the streams and the one with a grammar, the last: requests, and when the stop began and ended."""
    load = bench.load([[b] for b in bodies])
    begin = end = 0.0
    if stopped:
        time.sleep(after)
        with stopped():
            begin = time.monotonic()
            time.sleep(STOP_S)
            end = time.monotonic()
    return load.result()[0], begin, end


def stop_bodies(bench):
    """Requests of as many tokens as take STOP_RUN_S, where the model's positions are enough. Their prompts are in the prefix
    cache then, as they are in all runs that follow."""
    o, more = bench.options, lambda i: FREE if i < bench.options.free else REGEX
    prompts = random.Random(2)
    short = [body(o, prompts, o.output_len, 1, 200 + i, more(i)) for i in range(o.free + 1)]
    ms = middle(gaps_ms(stop_run(bench, short, None, 0)[0]))
    n_tokens = min(o.max_model_len - o.input_len, max(o.output_len, int(1e3 * STOP_RUN_S / max(ms, 0.01))))
    prompts = random.Random(2)
    return [body(o, prompts, n_tokens, 1, 200 + i, more(i)) for i in range(o.free + 1)]


def longest_gap_s(request):
    return max(b - a for a, b in zip(request["times"], request["times"][1:]))


def tokens_in(request, start, end):
    return sum(start < t <= end for t in request["times"])


def stop_row(made, base, begin, end):
    """Against the run without a stop; tokens while it lasts against those of as much time right before and after, half each."""
    delays = [(r["times"][-1] - r["sent"]) - (b["times"][-1] - b["sent"]) for r, b in zip(made, base)]
    tokens = [tokens_in(r, begin, end) for r in made]
    half = (end - begin) / 2
    usual = [tokens_in(r, begin - half, begin) + tokens_in(r, end, end + half) for r in made]
    return {"free_late_mean_s": sum(delays[:-1]) / len(delays[:-1]), "free_late_most_s": max(delays[:-1]), "guided_late_s": delays[-1],
            "free_gap_s": max(map(longest_gap_s, made[:-1])), "guided_gap_s": longest_gap_s(made[-1]),
            "free_tokens": sum(tokens[:-1]), "free_usual": sum(usual[:-1]), "guided_tokens": tokens[-1], "guided_usual": usual[-1],
            "ended_before": sum(r["times"][-1] < end for r in made),
            "same_text": all(r["digest"] == b["digest"] for r, b in zip(made, base))}


def print_stop(what, row):
    print(f"{what:27} {row['free_late_mean_s']:8.3f} {row['free_late_most_s']:8.3f} {row['guided_late_s']:8.3f} {row['free_gap_s']:9.3f} "
          f"{row['guided_gap_s']:9.3f} {row['free_tokens']:7} of {row['free_usual']:6} {row['guided_tokens']:6} of {row['guided_usual']:4} "
          f"{'yes' if row['same_text'] else 'NO':>5}"
          + (f"   delays its own only: {'yes' if row['holds'] else 'NO'}" if "holds" in row else "")
          + (f" ({row['ended_before']} streams ended before the stop did)" if row["ended_before"] else ""), flush=True)


def thread_holds(row, plain):
    """Streams without a grammar had their tokens meanwhile, of the usual ones the share that they have when nothing is stopped
    (a stream slows down as it grows); the other had a gap."""
    shares = [r["free_tokens"] / max(r["free_usual"], 1) for r in (row, plain)]
    return shares[0] >= 0.95 * shares[1] and row["guided_gap_s"] > 0.9 * STOP_S and row["ended_before"] == 0


def process_holds(row, plain):
    """Clients hear nothing meanwhile; streams without a grammar have caught up at their end."""
    return row["free_late_mean_s"] < plain["free_late_mean_s"] + 0.2 * STOP_S and row["guided_late_s"] > 0.5 * STOP_S and row["ended_before"] == 0


def part_stop(bench):
    o = bench.options
    bodies = stop_bodies(bench)
    base, _, _ = stop_run(bench, bodies, None, 0)
    seconds = max(r["times"][-1] - r["sent"] for r in base)
    ways = {"nothing stopped, once more": (None, contextlib.nullcontext),
            "thread of masks stopped": (thread_holds, lambda: stopped_thread(bench.server.mask_thread()))}
    if o.backend == "cuda":
        ways["whole server stopped"] = (process_holds, lambda: stopped_process(bench.server.process))
    print(f"\n{o.free} streams without a grammar and one with, {seconds:.2f} s; a stop of {STOP_S:g} s\n"
          f"{'':27} {'free':>8} {'most':>8} {'guided':>8} {'free':>9} {'guided':>9} {'free tokens':>17} {'guided':>14} {'same':>5}\n"
          f"{'':27} {'late s':>8} {'late s':>8} {'late s':>8} {'gap s':>9} {'gap s':>9} {'meanwhile, usual':>17} {'tokens':>14} {'text':>5}")
    result = {"alone_s": seconds}
    for what, (holds, stopped) in ways.items():
        try:
            made, begin, end = stop_run(bench, bodies, stopped, min(0.25 * seconds, 2.0))
            result[what] = row = stop_row(made, base, begin, end)
            if holds:
                row["holds"] = holds(row, result["nothing stopped, once more"])
            print_stop(what, row)
        except (OSError, TimeoutError) as e:
            result[what] = {"error": str(e)}
            print(f"{what:27} {e}: tests/engine_test_structured (test_stopped_host) does the same in one process", flush=True)
    return result


def first_token_ms(bench, prompt):
    """When the request was sent, its first token came, and how long that was."""
    body = json.dumps({"model": NAME, "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True,
                       "stream_options": {"include_usage": True}, **FREE}).encode()
    made = [read_answer(*answer) for answer in run_lanes(bench.server.port, [(0, [body])])][0]
    if not made["good"]:
        raise RuntimeError(f"the long prompt: {made.get('status')} {made['said']}")
    return made["sent"], made["times"][0], 1e3 * (made["times"][0] - made["sent"])


def part_prompt(bench):
    o = bench.options
    prompts = [[bench.rng.randrange(FIRST_ID, LAST_ID) for _ in range(o.long_len)] for _ in range(2)]
    first_token_ms(bench, prompts[0][::-1])
    row = {key: first_token_ms(bench, prompts[0])[2] for key in ("alone_ms", "alone_again_ms")}
    load = bench.load([[bench.body(min(o.max_model_len - o.input_len, 1000))] for _ in range(o.free)])
    time.sleep(0.5)
    spans = []
    for key in ("beside_ms", "beside_again_ms"):
        sent, first, row[key] = first_token_ms(bench, prompts[1])
        spans.append((sent, first))
        time.sleep(0.3)
    streams = load.result()[0]
    pairs = [(a, b, m - n) for r in streams
             for a, b, n, m in zip(r["times"], r["times"][1:], r["counts"], r["counts"][1:])]

    def longest(start, end):
        return max((1e3 * (b - a) / max(n, 1) for a, b, n in pairs if b > start and a < end), default=math.nan)

    row.update(others_before_ms=longest(max(r["times"][0] for r in streams) + 0.1, spans[0][0]),
               others_step_ms=longest(*spans[0]), others_step_again_ms=longest(*spans[1]))
    print(f"\n{o.long_len} tokens: first token {row['alone_ms']:.1f} ms alone, {row['alone_again_ms']:.1f} again; beside {o.free} streams "
          f"{row['beside_ms']:.1f}, {row['beside_again_ms']:.1f} again, their longest step {row['others_step_ms']:.1f}, "
          f"{row['others_step_again_ms']:.1f} again, {row['others_before_ms']:.1f} before")
    return row


PARTS = {"streams": part_streams, "prompt": part_prompt, "guided": part_guided, "masks": part_masks, "stop": part_stop}


def without_nan(value):
    """As JSON may have it."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def run_parts(bench, record):
    """Parts that failed."""
    failed = []
    bench.load([[bench.body(16)] for _ in range(min(8, bench.options.max_num_seqs))]).result()
    for name in bench.options.only:
        start = time.monotonic()
        if bench.left() < 15:
            print(f"\n{name}: left out, no time left")
            failed.append(name)
            continue
        try:
            record["parts"][name] = PARTS[name](bench)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as e:
            print(f"\n{name}: FAILED: {e}", flush=True)
            record["parts"][name] = {"error": str(e)}
            failed.append(name)
        print(f"[{name}: {time.monotonic() - start:.0f} s]", flush=True)
        records.write(without_nan(record), bench.options.record)
        if bench.server.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {bench.server.process.returncode}")
    return failed


# ---- the program --------------------------------------------------------------------------------

def counts(text):
    return [int(word) for word in text.split(",")]


def parse():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("quern", help="the program")
    a.add_argument("model", type=pathlib.Path, metavar="FOLDER", help="with a config.json")
    a.add_argument("--backend", default="cuda", choices=["cpu", "cuda"])
    a.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (all)")
    a.add_argument("--streams", type=counts, default=[1, 64, 256], help="(1,64,256)")
    a.add_argument("--rounds", type=int, default=3, help="requests of a stream (3)")
    a.add_argument("--guided", type=int, default=64, help="streams of the guided part (64)")
    a.add_argument("--guided-rounds", type=int, default=5, help="(5)")
    a.add_argument("--temperature", type=float, default=1, help="of the guided part (1)")
    a.add_argument("--free", type=int, default=16, help="streams of the stop and prompt parts (16)")
    a.add_argument("--input-len", type=int, default=128, help="tokens per prompt (128)")
    a.add_argument("--output-len", type=int, default=256, help="tokens to generate (256)")
    a.add_argument("--long-len", type=int, default=1000, help="tokens of the prompt part's prompts (1000)")
    a.add_argument("--max-num-seqs", type=int, default=256, help="of the server (256)")
    a.add_argument("--max-model-len", type=int, default=2048, help="of the server (2048)")
    a.add_argument("--serve", default=[], type=lambda t: t.split(), help="more options of the server, in one word")
    a.add_argument("--probe", type=pathlib.Path, help="tests/grammar_probe of a build")
    a.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="of clients (half the cores)")
    a.add_argument("--limit", type=int, default=300, help="seconds of everything; what comes later is left out (300)")
    a.add_argument("--record", metavar="NAME", default="serve-figures", help="(serve-figures)")
    options = a.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    if not set(options.only) <= set(PARTS):
        a.error(f"--only: parts are {', '.join(PARTS)}")
    options.quern = str(pathlib.Path(options.quern).resolve())
    options.end = time.monotonic() + options.limit
    return options


def out_of_time(number, frame):
    raise TimeoutError("--limit: no time left")


def told_to_end(number, frame):
    sys.exit(f"serve_figures.py: signal {number}")


def main():
    options = parse()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, told_to_end)
    signal.alarm(options.limit + 20)
    record = {**records.head(options.quern), "command": " ".join(sys.argv), "cores": os.cpu_count(), "parts": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / options.model.resolve().name
        folder.mkdir()
        server = None
        try:
            record["vocabulary"] = make_folder(options.model, folder)
            server = Server(options, folder)
            record["server"], record["start_s"] = server.command, server.start_s
            record["ready"] = re.search(r".*ready: .*", server.said()).group(0)
            print(f"{record['ready']}\n{record['vocabulary']} tokens, healthy after {server.start_s:.1f} s", flush=True)
            failed = run_parts(Bench(options, server), record)
        except (RuntimeError, OSError) as e:
            print(f"serve_figures.py: {e}")
            failed = ["server"]
        finally:
            if server:
                record["exit_status"] = server.end()
            if (folder / "stderr").exists():
                record["stderr"] = (folder / "stderr").read_text(encoding="utf-8", errors="replace")[-4000:]
    if failed:
        print(f"FAILED: {', '.join(failed)}; the server said:\n{record.get('stderr', '')}")
    print(f"recorded in {records.write(without_nan(record), options.record)}")
    return 1 if failed or record.get("exit_status") else 0


if __name__ == "__main__":
    sys.exit(main())
