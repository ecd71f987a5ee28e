"""Mixed requests for long: memory and descriptors stay as they are. SOAK in the environment is how many (2,000)."""
import http.client
import json
import os
import random
import threading
import time

from common import JSON, KNOWN, SANITIZED, Server, main

COUNT = int(os.environ.get("SOAK", "2000"))
THREADS = 8
TEXT = "Once upon a time there was a small house near the old market, and nobody knew who lived there. " * 8


def kinds(r):
    """One request: path, body, whether its client leaves early."""
    tokens, prompt = r.randrange(1, 12), [r.randrange(10, 2000) for _ in range(r.choice([1, 3, 70, 200]))]
    chat = {"messages": [{"role": "user", "content": TEXT[:r.randrange(1, 600)]}], "max_tokens": tokens}
    return r.choice([
        lambda: ("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "seed": r.randrange(99)}, False),
        lambda: ("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "logprobs": 3, "echo": True}, False),
        lambda: ("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "n": 3, "stream": True}, False),
        lambda: ("/v1/completions", {"prompt": prompt, "max_tokens": 300, "stream": True}, True),
        lambda: ("/v1/completions", {"prompt": prompt, "max_tokens": 300}, True),
        lambda: ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2}, False),
        lambda: ("/v1/chat/completions", {**chat, "stream": True, "stop": ["the", "a"]}, False),
        lambda: ("/v1/messages", {**chat, "stream": r.random() < 0.5}, False),
        lambda: ("/v1/responses", {"input": "Hi", "max_output_tokens": tokens, "stream": r.random() < 0.5}, False),
        lambda: ("/tokenize", {"prompt": TEXT * r.choice([1, 1, 1, 30])}, False),
        lambda: ("/v1/completions", {"prompt": prompt, "max_tokens": -1}, False),
        lambda: ("/v1/completions", "{broken", False),
    ])()


class Client(threading.Thread):
    def __init__(self, server, seed, n):
        super().__init__()
        self.server, self.r, self.n, self.wrong = server, random.Random(seed), n, []
        self.connection = None

    def connect(self):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        return self.connection

    def one(self):
        path, body, leaves = kinds(self.r)
        c = self.connect()
        c.request("POST", path, body if isinstance(body, str) else json.dumps(body), JSON)
        if leaves:
            time.sleep(self.r.random() * 0.01)
        else:
            answer = c.getresponse()
            answer.read()
            if answer.status not in (200, 400):
                self.wrong.append((answer.status, path, body))
        if leaves or self.r.random() < 0.1:
            c.close()
            self.connection = None

    def run(self):
        for _ in range(self.n):
            self.one()
        if self.connection:
            self.connection.close()


def run(server, seed, n):
    clients = [Client(server, seed + i, n // THREADS) for i in range(THREADS)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    wrong = [w for c in clients for w in c.wrong]
    assert not wrong, wrong[:5]
    server.check_sound()


def test_soak():
    with Server() as s:
        run(s, 0, COUNT // 2)
        before, files, began = s.rss(), s.descriptors(), time.monotonic()
        run(s, 1000, COUNT // 2)
        seconds = time.monotonic() - began
        print(f"   {COUNT} requests, {COUNT / 2 / seconds:.0f}/s: {before} kB resident after the first half, {s.rss()} at the end")
        assert SANITIZED or s.rss() - before < 1024, (before, s.rss())
        s.until(lambda: s.descriptors() <= files)
        s.good("/v1/completions", KNOWN)


main(globals())
