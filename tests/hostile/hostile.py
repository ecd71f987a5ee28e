"""What the hostile tests share: damaged copies of a model, and the one thing that may happen.

Each test is run as `python3 test.py QUERN` in the repository's root. Whatever a file says, quern ends
with code 0 or 1 (2 for a mistake in the command line), writes at most one line of error, which begins
with "quern: " and names the file and the field, and takes little memory: never a signal, never a
sanitizer's report.
"""
import collections
import concurrent.futures
import copy
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import traceback

GOLDEN = pathlib.Path("tests/golden/models")
TOKENIZERS = pathlib.Path("tests/golden/tokenizer")
TINY = pathlib.Path("models/tiny")
LIMIT = 2 << 30  # bytes of address space, where the build allows a limit
RESIDENT = 600 << 20  # bytes: AddressSanitizer's own share included
TIMEOUT = 120


class Hostile:
    """Runs quern and collects what was wrong; cases run beside each other. half: of the cases that one line of the
    test makes, the first and every second one after it."""

    def __init__(self, half=False):
        self.half = half
        self.quern = os.path.realpath(sys.argv[1])
        self.only = sys.argv[2] if len(sys.argv) > 2 else ""
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="hostile-"))
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
        self.pending = []
        self.failures = []
        self.n = self.n_refused = 0
        self.lines = collections.Counter()  # cases by the lines that made them
        # Limits are this process's, and so its children's: to set them between fork and exec takes a copy of all its
        # page tables. ASan and TSan reserve terabytes of addresses: with them only the resident size is bounded.
        no_limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, no_limit[1]))
        if self._execute(["version"])[0] != 0:
            resource.setrlimit(resource.RLIMIT_AS, no_limit)

    def folder(self, model=None, link=("model.safetensors",)):
        """A folder of its own; with `model`, its files in it: `link`ed, or copied to be damaged."""
        d = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        for f in model.iterdir() if model else []:
            if f.name in link:
                (d / f.name).symlink_to(f.resolve())
            elif f.name != "cases.json":
                shutil.copy(f, d / f.name)
        return d

    def _execute(self, args, stdin=b""):
        """Exit status, stdout, stderr and peak resident bytes."""
        with tempfile.TemporaryFile(dir=self.root) as i, \
                tempfile.TemporaryFile(dir=self.root) as o, tempfile.TemporaryFile(dir=self.root) as e:
            i.write(stdin)
            i.seek(0)
            p = subprocess.Popen([self.quern, *map(os.fsencode, map(str, args))], stdin=i, stdout=o, stderr=e)
            timer = threading.Timer(TIMEOUT, p.kill)
            timer.start()
            _, status, usage = os.wait4(p.pid, 0)
            timer.cancel()
            p.returncode = os.waitstatus_to_exitcode(status)
            o.seek(0)
            e.seek(0)
            return p.returncode, o.read(), e.read(), usage.ru_maxrss * 1024

    def run(self, name, args, words=(), codes=(1,), stdin=b"", resident=RESIDENT):
        """Queues a case. codes: the exit codes that are right; words: what the line of error must
        say (checked where the case fails, in any order)."""
        if self.only not in name:
            return
        if self.half:
            made_by = tuple(line for _, line in traceback.walk_stack(None))
            self.lines[made_by] += 1
            if self.lines[made_by] % 2 == 0:
                return
        self.pending.append((name, args, self.pool.submit(
            self._judge, name, args, words, codes, stdin, resident)))

    def _judge(self, name, args, words, codes, stdin, resident):
        code, out, err, peak = self._execute(args, stdin)
        text = err.decode("utf-8", "replace")
        wrong = []
        if code not in codes:
            wrong.append(f"exit code {code}, want {codes}")
        if code in (1, 2):
            self.n_refused += 1
            if text.count("\n") != 1 or not text.endswith("\n") or not text.startswith("quern: "):
                wrong.append("want one line that begins with 'quern: '")
            if any(ord(c) < 32 for c in text[:-1]):
                wrong.append("control characters in the message")
            wrong += [f"the message lacks {w!r}" for w in words if w not in text]
        if peak > resident:
            wrong.append(f"{peak >> 20} MiB of memory, want at most {resident >> 20}")
        if wrong:
            command = " ".join(map(str, args))
            return f"{name}: {'; '.join(wrong)}\n    quern {command[:300]}\n    {text[:600]!r}"
        return None

    def settle(self):
        """Waits for the queued cases."""
        for name, args, future in self.pending:
            self.n += 1
            wrong = future.result()
            if wrong:
                self.failures.append(wrong)
        self.pending = []

    def end(self):
        self.settle()
        shutil.rmtree(self.root, ignore_errors=True)
        for f in self.failures:
            print("FAILED", f)
        print(f"{self.n} cases, {self.n_refused} refused, {len(self.failures)} wrong")
        sys.exit(1 if self.failures or (self.n == 0 and not self.only) else 0)


def generate(d, *more):
    """The arguments that open a model and make two tokens."""
    return ["generate", "--model", d, "--prompt-ids", "1,2", "--max-tokens", "2", "-q", "--format",
            "json", "--max-num-batched-tokens", "4", "--max-num-seqs", "1", *more]


def read_safetensors(path):
    """(header as a dict, data) of a file."""
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def write_safetensors(path, header, data, length=None):
    """header: a dict or the bytes themselves; length: what the first 8 bytes claim."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def changed(o, path, value):
    """A deep copy of JSON with the member at `path` (a list of keys) replaced, or removed if value is
    `removed`."""
    o = copy.deepcopy(o)
    at = o
    for key in path[:-1]:
        at = at[key]
    if value is removed:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return o


removed = object()
