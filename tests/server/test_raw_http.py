"""Requests as bytes: what the gate refuses, what it lets pass, and that no request hides in another."""
import re
import socket
import time

from common import KNOWN, Server, json, main

s = Server()
HOST = b"Host: x\r\n"
BODY = json.dumps({**KNOWN, "max_tokens": 1}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def answers(data, seconds=0.4, close=False):
    """Status codes of what comes back for these bytes, and whether the server closed."""
    c = s.connect()
    c.sendall(data)
    if close:
        c.shutdown(socket.SHUT_WR)
    c.settimeout(seconds)
    got, closed = b"", False
    try:
        while True:
            more = c.recv(65536)
            if not more:
                closed = True
                break
            got += more
    except socket.timeout:
        pass
    except ConnectionResetError:
        closed = True
    c.close()
    return [int(x) for x in re.findall(rb"HTTP/1\.[01] (\d+) ", got)], closed, got


# name, bytes, status codes wanted, whether the connection must be closed
REQUESTS = [
    ("plain", b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", [200], False),
    ("http 1.0", b"GET /health HTTP/1.0\r\n\r\n", [200], True),
    ("asks to close", b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", [200], True),
    ("pipelined", (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 3, [200, 200, 200], False),
    ("posts pipelined", (POST + LENGTH + b"\r\n" + BODY) * 2, [200, 200], False),
    ("chunked", POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n", [200], False),
    ("CL and TE", POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [400], True),
    ("TE and CL", POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED, [400], True),
    ("two CL", POST + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY, [400], True),
    ("two equal CL", POST + LENGTH + LENGTH + b"\r\n" + BODY, [400], True),
    ("CL +", POST + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY, [400], True),
    ("CL -", POST + b"Content-Length: -1\r\n\r\n", [400], True),
    ("CL hex", POST + b"Content-Length: 0x5\r\n\r\nhello", [400], True),
    ("CL list", POST + b"Content-Length: 5, 5\r\n\r\nhello", [400], True),
    ("CL with blank before colon", POST + b"Content-Length : 5\r\n\r\nhello", [400], True),
    ("TE xchunked", POST + b"Transfer-Encoding: xchunked\r\n\r\n" + SMUGGLED, [400], True),
    ("TE chunked, identity", POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", [400], True),
    ("TE twice", POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", [400], True),
    ("TE in 1.0", b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [400], True),
    ("bad chunk size", POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", [413], True),
    ("bare LF", b"GET /health HTTP/1.1\nHost: x\n\n", [400], True),
    ("bare LF in a header", b"GET /health HTTP/1.1\r\n" + HOST + b"A: b\nC: d\r\n\r\n", [400], True),
    ("bare CR in a value", b"GET /health HTTP/1.1\r\n" + HOST + b"A: b\rC: d\r\n\r\n", [400], True),
    ("NUL in a value", b"GET /health HTTP/1.1\r\n" + HOST + b"A: b\0c\r\n\r\n", [400], True),
    ("folded header", b"GET /health HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", [200], False),
    ("no Host", b"GET /health HTTP/1.1\r\n\r\n", [400], True),
    ("two Hosts", b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n", [400], True),
    ("name with a blank", b"GET /health HTTP/1.1\r\n" + HOST + b"A b: c\r\n\r\n", [400], True),
    ("no name", b"GET /health HTTP/1.1\r\n" + HOST + b": c\r\n\r\n", [400], True),
    ("no colon", b"GET /health HTTP/1.1\r\n" + HOST + b"abc\r\n\r\n", [400], True),
    ("escaped NUL", b"GET /health%00x HTTP/1.1\r\n" + HOST + b"\r\n", [400], True),
    ("path not ASCII", b"GET /h\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n", [400], True),
    ("two slashes", b"GET //health HTTP/1.1\r\n" + HOST + b"\r\n", [404], False),
    ("dots", b"GET /v1/../health HTTP/1.1\r\n" + HOST + b"\r\n", [404], False),
    ("escaped path", b"GET /%68ealth HTTP/1.1\r\n" + HOST + b"\r\n", [404], False),
    ("absolute form", b"GET http://x/health HTTP/1.1\r\n" + HOST + b"\r\n", [400], True),
    ("long path", b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", [400], True),
    ("100 KB header", b"GET /health HTTP/1.1\r\n" + HOST + b"A: " + b"b" * 100000 + b"\r\n\r\n", [400], True),
    ("200 headers", b"GET /health HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 200 + b"\r\n", [400], True),
    ("5000 headers", b"GET /health HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 5000 + b"\r\n", [400], True),
    ("HTTP/2.0", b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", [400], True),
    ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", [400], True),
    ("expect", POST + LENGTH + b"Expect: 100-continue\r\n\r\n", [100], False),
    ("length too large", POST + b"Content-Length: 99999999999\r\n\r\n", [413], True),
    ("length beyond 64 bits", POST + b"Content-Length: 99999999999999999999999\r\n\r\n", [413], True),
]


def test_requests():
    wrong = []
    for name, data, codes, must_close in REQUESTS:
        got, closed, raw = answers(data, 1.5 if 200 in codes else 0.6)
        if got != codes or (must_close and not closed) or b"smuggled" in raw:
            wrong.append((name, got, closed, raw[:300]))
    assert not wrong, wrong


def test_split_at_every_byte():
    data = POST + LENGTH + b"\r\n" + BODY
    c = s.connect()
    for i in range(0, len(data)):
        c.sendall(data[i:i + 1])
        if i % 40 == 0:
            time.sleep(0.002)
    c.settimeout(20)
    assert b" 200 OK" in c.recv(65536)
    c.sendall(data[:len(data) // 2])  # and the next one in two pieces, on the same connection
    time.sleep(0.05)
    c.sendall(data[len(data) // 2:])
    assert b" 200 OK" in c.recv(65536)
    c.close()


def test_pipelined_while_streaming():
    """A request that comes while another one streams waits, and is answered after it."""
    ask = json.dumps({**KNOWN, "stream": True}).encode()
    c = s.connect()
    c.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(ask) + ask)
    c.settimeout(20)
    got = c.recv(100)
    c.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
    while b'{"status":"ok"}' not in got:
        more = c.recv(65536)
        assert more, got
        got += more
    assert got.index(b"[DONE]") < got.index(b'{"status":"ok"}')
    c.close()


def parts(data):
    """Headers and body of each answer to these bytes; the last request closes the connection."""
    c = s.connect(timeout=20)
    c.sendall(data)
    got = b""
    while more := c.recv(65536):
        got += more
    c.close()
    found = []
    while got:
        head, _, got = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), (head, got)
        n = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
        found.append((head, got[:n] if len(found) % 2 else b""))  # every second request is a GET
        got = got[n:] if len(found) % 2 == 0 else got
    return found


def both(path, more=b""):
    """Answers to HEAD, GET, HEAD and GET of a path, pipelined."""
    head, get = ((method + b" " + path + b" HTTP/1.1\r\n" + HOST + more) for method in (b"HEAD", b"GET"))
    return parts(head + b"\r\n" + get + b"\r\n" + head + b"\r\n" + get + b"Connection: close\r\n\r\n")


def test_head():
    """HEAD has the length of GET's answer and no body, so that the next answer begins where it should."""
    for path, code in [(b"/health", b"200"), (b"/", b"200"), (b"/v1/models", b"200"), (b"/absent", b"404"),
                       (b"/tokenize", b"405")]:
        found = both(path)
        assert len(found) == 4 and all(head.split(b" ")[1] == code for head, _ in found), (path, found)
        lengths = {re.search(rb"(?i)content-length: (\d+)", head).group(1) for head, _ in found}
        assert lengths == {b"%d" % len(found[1][1])} and len(found[3][1]) == len(found[1][1]) > 0, (path, found)
    global s
    open_to_all = s
    with Server("--api-key", "k") as s:
        found = both(b"/v1/models")
        assert len(found) == 4 and all(head.split(b" ")[1] == b"401" for head, _ in found), found
    s = open_to_all


def test_stream_of_1_0():
    """HTTP/1.0 has no chunks: the end of the connection ends a stream, also for a client that would keep it."""
    ask = json.dumps({**KNOWN, "stream": True}).encode()
    for more in (b"", b"Connection: keep-alive\r\n", b"Connection: Keep-Alive\r\nConnection: keep-alive\r\n"):
        c = s.connect(timeout=20)
        c.sendall(POST.replace(b"1.1", b"1.0") + more + b"Content-Length: %d\r\n\r\n" % len(ask) + ask)
        got = b""
        while piece := c.recv(65536):
            got += piece
        c.close()
        head, _, body = got.partition(b"\r\n\r\n")
        assert b" 200 " in head and b"content-length" not in head.lower() and b"keep-alive" not in head.lower(), head
        assert b"connection: close" in head.lower() and body.endswith(b"data: [DONE]\n\n"), got
    got, closed, _ = answers(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
    assert got == [200, 200] and not closed, (got, closed)


def test_too_large_in_form():
    """A body over the limit, but not by much, has its answer in the API's form."""
    c = s.connect()
    n = (16 << 20) + 10
    c.sendall(POST + b"Content-Length: %d\r\n\r\n" % n)
    for _ in range(n // 65536 + 1):
        c.sendall(b" " * min(65536, n))
        n -= min(65536, n)
    c.settimeout(20)
    got = c.recv(65536)
    assert b" 413 " in got and b"request_too_large" in got, got
    c.close()


def test_sound():
    s.check_sound()
    s.end()


main(globals())
