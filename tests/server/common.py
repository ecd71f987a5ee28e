"""What the tests of `quern serve` share: a server over the tiny model, requests over plain sockets, and what must
hold at the end of every test: a known request gives its known bits, nothing is held, no descriptor is left.

Each test is run as `python3 test.py QUERN` in the repository's root; functions whose names begin with test_ run in
their order. A name, or a part of one, after QUERN runs those only.
"""
import atexit
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

QUERN = os.path.realpath(sys.argv[1])
# Resident memory is then the sanitizer's, too.
SANITIZED = any(name in pathlib.Path(QUERN).read_bytes() for name in (b"__asan_init", b"__tsan_init"))
TINY = "models/tiny"
DEEP = bool(os.environ.get("SERVER_DEEP"))  # counts in full
KNOWN = {"prompt": [1, 2, 3], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 0}
JSON = {"Content-Type": "application/json"}


def known_bits():
    """Text and log-probabilities of the known request, as `quern generate` has them."""
    done = subprocess.run([QUERN, "generate", "--model", TINY, "--prompt-ids", "1,2,3", "--max-tokens", "24",
                           "--temperature", "0", "--ignore-eos", "--backend", "cpu", "-q", "--format", "json"],
                          capture_output=True, check=True)
    made = json.loads(done.stdout)
    return made["text"], made["logprobs"]


class Server:
    """One `quern serve` on a free port."""

    def __init__(self, *args, ready=True, model=TINY, env=None):
        self.log = []
        if SANITIZED and "--threads" not in args:
            args = ("--threads", "1", *args)  # ThreadSanitizer has the workers; here two would poll beside other tests
        self.process = subprocess.Popen([QUERN, "serve", model, "--port", "0", "--backend", "cpu", *args],
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        atexit.register(lambda: self.process.poll() is None and self.process.kill())
        self.port = int(self.wait_for(r"listening on http://[^ ]*:(\d+)").group(1))
        if ready:
            self.wait_for(r"ready: ")

    def wait_for(self, pattern):
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"the server ended without '{pattern}': {''.join(self.log)}")

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, headers, and the body as JSON (as text where it is none)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, JSON if headers is None else headers)
            r = c.getresponse()
            text = r.read()
            with contextlib.suppress(ValueError):
                return r.status, r.headers, json.loads(text)
            return r.status, r.headers, text.decode("utf-8", "replace")
        finally:
            c.close()

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def good(self, path, body, **more):
        status, _, answer = self.post(path, body, **more)
        assert status == 200, (status, answer)
        return answer

    def stream(self, path, body, raw=False):
        """The events of a stream: JSON of OpenAI's, (name, JSON) where events have names."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps({**body, "stream": True}), JSON)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        assert r.status == 200, (r.status, text)
        assert r.headers["Content-Type"].startswith("text/event-stream"), r.headers
        return text if raw else events(text)

    def metrics(self):
        text = self.request("GET", "/metrics")[2]
        found = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def metric(self, start):
        return sum(v for k, v in self.metrics().items() if k.startswith(start))

    def rss(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text()).group(1))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def until(self, what, seconds=60):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "did not come about"
            time.sleep(0.02)

    def idle(self):
        return self.request("GET", "/load")[2]["server_load"] == 0

    def check_sound(self):
        """The known request gives its known bits, and nothing is held."""
        self.until(self.idle)
        answer = self.good("/v1/completions", KNOWN)["choices"][0]
        assert (answer["text"], answer["logprobs"]["token_logprobs"]) == known(), answer
        self.until(lambda: self.metric("quern_http_connections") == 1)  # the one that asks
        self.until(lambda: self.kv_blocks("held") == 0, 5)

    def kv_blocks(self, state):
        name = f'quern_kv_blocks{{state="{state}",'
        found = [v for k, v in self.metrics().items() if k.startswith(name)]
        assert len(found) == 1, (name, found)
        return found[0]

    def end(self, number=signal.SIGTERM, code=0):
        self.process.send_signal(number)
        got = self.process.wait(30)
        self.log += self.process.stderr.readlines()
        self.process.stderr.close()
        assert got == code, (got, self.log)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            if kind is None:
                self.end()
            else:
                self.process.kill()
                self.process.wait()
        return False


def free_port():
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        return c.getsockname()[1]


@contextlib.contextmanager
def front(n_ports, command, answers, seconds=180):
    """The ports of a program in front of servers, from the moment at which answers(its first port) holds.

    command(*ports) gives the program's words. Someone else may take a port between its choice here and the program's
    bind: a program that ends before it answers starts again on other ports, three times in all."""
    for _ in range(3):
        ports = [free_port() for _ in range(n_ports)]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(command(*ports), stdout=log, stderr=log)
            try:
                end = time.monotonic() + seconds
                while process.poll() is None and not answers(ports[0]):
                    assert time.monotonic() < end, f"no answer in {seconds} s: {written(log)}"
                    time.sleep(0.02)
                if process.poll() is None:
                    yield ports
                    return
            finally:
                process.terminate()
                process.wait()
            said = written(log)
    raise AssertionError(f"ended three times before it answered: {said}")


def written(log):
    """The last 2,000 characters of an open file."""
    log.seek(0)
    return log.read()[-2000:]


_known = []


def known():
    if not _known:
        _known.append(known_bits())
    return _known[0]


def events(text):
    found = []
    for block in text.split("\n\n"):
        name, data = None, []
        for line in block.splitlines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data.append(line[6:])
        if data:
            value = data[0] if data[0] == "[DONE]" else json.loads(data[0])
            found.append((name, value) if name else value)
    return found


def is_refused(answer, status, param=None, code=None):
    """An error in OpenAI's form, which names its field."""
    got, _, body = answer
    assert got == status, (got, body)
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    if param is not None:
        assert body["error"]["param"] == param, body
    if code is not None:
        assert body["error"]["code"] == code, body


def main(scope):
    """Runs the test_ functions of a module's globals, with `server` where they want one."""
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    failed = 0
    for name, test in list(scope.items()):
        if not name.startswith("test_") or wanted not in name:
            continue
        began = time.monotonic()
        try:
            test()
            print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception:  # a test is free to fail in any way
            failed += 1
            print(f"FAILED {name}", flush=True)
            traceback.print_exc()
    sys.exit(failed > 0)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)
