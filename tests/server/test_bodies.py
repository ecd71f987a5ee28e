"""Bodies that are wrong: damaged JSON by seed, and every field of /openapi.json out of its bounds. Each is answered
with a 4xx (a 200 where the damage changed nothing), and the server goes on."""
import json
import random

from common import DEEP, SANITIZED, Server, http, main

s = Server()
COUNT = 10000 if DEEP else 1500
GROWTH_KB = 8192
JSON = {"Content-Type": "application/json"}
GOOD = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 1, "temperature": 0, "stop": ["x"], "logit_bias": {"5": 1},
                        "stream_options": None, "n": 1, "seed": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 1},
    "/v1/messages": {"max_tokens": 1, "system": "x", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 1},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
connection = None


def post(path, data):
    global connection
    for _ in range(2):
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        try:
            connection.request("POST", path, data, JSON)
            r = connection.getresponse()
            return r.status, r.read()
        except (http.client.HTTPException, OSError):
            connection.close()
            connection = None
    raise AssertionError((path, data[:200]))


def check(path, data, codes=(200, 400, 404)):
    status, text = post(path, data)
    assert status in codes, (status, path, data[:300], text[:300])
    if status != 200:
        body = json.loads(text)
        assert body["error"]["message"], body
    return status


def damaged(r, text):
    data = bytearray(text)
    for _ in range(r.choice([1, 1, 2, 5])):
        at = r.randrange(len(data) + 1)
        kind = r.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = r.randrange(256)
        elif kind == 1:
            data[at:at] = r.choice([b"\xff", b"\xed\xa0\x80", b"\0", b"\\ud800", b"1e999", b"-", b"[" * 70, b"{", b'"', b"NaN"])
        elif kind == 2:
            del data[at:at + r.randrange(1, 6)]
        elif kind == 3:
            data = data[:at]
        elif data:
            data[at:at] = data[r.randrange(len(data)):][:20]
    return bytes(data)


def test_damaged():
    r = random.Random(45)
    for _ in range(COUNT):
        path = r.choice(list(GOOD))
        check(path, damaged(r, json.dumps(GOOD[path]).encode()))


def test_shapes():
    for path in GOOD:
        for data in (b"", b"null", b"1", b"[]", b'"x"', b"{", b"{}x", b"[" * 100000, b'{"a":' * 100000, b'{"a":1,"a":2}',
                     b"\xef\xbb\xbf{}", b'{"model":"\\u0000"}', b'{"\\ud800":1}', b'{"x":1e400}', b"\0\0\0\0"):
            check(path, data, (400, 404))


def test_types():
    """Every field of every route with values of other types and far out of its bounds."""
    spec = s.request("GET", "/openapi.json")[2]
    values = [True, -1, 0, 1, 1.5, 2 ** 31, 2 ** 63, -2 ** 63, 10 ** 400, -10 ** 30, 1e308, "", "x", "x" * 3000, [], [[]],
              [None], [""], ["x"] * 20, [1.5], [-1], [2 ** 40], {}, {"x": 1}, {"-1": 1}, {"1": 1e9}, [{"role": "user"}]]
    n = refused = 0
    for path, good in GOOD.items():
        schema = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name in schema["properties"]:
            for value in values:
                if name == "max_tokens" and value == 0 and path == "/v1/completions":
                    continue
                data = json.dumps({**good, name: value, **({"max_tokens": 1} if name != "max_tokens" and "max_tokens" in
                                                           schema["properties"] and name != "max_completion_tokens" else {})})
                refused += check(path, data.encode()) != 200
                n += 1
    assert n > 3000 and refused > n / 2, (n, refused)


def leave():
    global connection
    if connection:
        connection.close()
    connection = None
    s.check_sound()


def test_sound():
    """A second round of damaged bodies leaves memory as the first left it."""
    leave()
    before = s.rss()
    test_damaged()
    leave()
    assert SANITIZED or s.rss() - before < GROWTH_KB, (before, s.rss())
    s.end()


main(globals())
