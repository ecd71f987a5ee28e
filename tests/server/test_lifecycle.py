"""Start, keys, drain, a second signal, ports, and an engine that stalls."""
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from common import JSON, KNOWN, QUERN, TINY, Server, http, is_refused, known, main

LONG = {"prompt": [1, 2, 3], "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def streaming(s, body):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), JSON)
    return c, c.getresponse()


def test_healthy_soon():
    """From the start of the process to the first 200 of /health; the machine may be busy with other tests."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        with Server(ready=False) as s:
            s.until(lambda s=s: s.request("GET", "/health")[0] == 200)
            times.append(time.monotonic() - began)
    print(f"   healthy after {sorted(times)[2]:.3f} s (median of 5)")
    assert min(times) < 3, times


def test_drain():
    """SIGTERM while requests run: they end as they would have, new ones are refused, and the exit code is 0."""
    with Server() as s:
        whole = s.good("/v1/completions", LONG)["choices"][0]["text"]
        made = []
        ask = threading.Thread(target=lambda: made.append(s.good("/v1/completions", LONG)["choices"][0]["text"]))
        c, r = streaming(s, LONG)
        r.read(10)
        ask.start()
        s.until(lambda: s.request("GET", "/load")[2]["server_load"] == 2)
        s.process.send_signal(signal.SIGTERM)
        s.until(lambda: s.request("GET", "/health")[0] == 503, 2)
        is_refused(s.post("/v1/completions", KNOWN), 503, None, "shutting_down")
        assert b"[DONE]" in r.read()
        ask.join()
        assert made == [whole]
        c.close()
        assert s.process.wait(10) == 0


def test_second_signal():
    """It ends what runs, with an error as the last event."""
    with Server() as s:
        c, r = streaming(s, LONG)
        r.read(10)
        s.process.send_signal(signal.SIGTERM)
        s.until(lambda: s.request("GET", "/health")[0] == 503, 2)
        began = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        end = r.read().decode()
        assert '"code":"shutting_down"' in end and end.endswith("data: [DONE]\n\n"), end[-300:]
        assert s.process.wait(10) == 0 and time.monotonic() - began < 1.5
        c.close()


def test_drain_has_an_end():
    with Server("--shutdown-timeout", "0") as s:
        c, r = streaming(s, LONG)
        r.read(10)
        s.process.send_signal(signal.SIGTERM)
        assert b"shutting_down" in r.read()
        assert s.process.wait(5) == 0
        c.close()


def test_idle_end():
    with Server() as s:
        held = s.connect()
        began = time.monotonic()
        s.end(signal.SIGINT)
        assert time.monotonic() - began < 4
        held.close()


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run([QUERN, "serve", TINY, "--port", str(taken.getsockname()[1])], capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 1 and "in use" in done.stderr, done.stderr


def test_bad_model():
    done = subprocess.run([QUERN, "serve", "/nonexistent", "--port", "0"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "/nonexistent" in done.stderr, done.stderr


def test_keys():
    with Server("--api-key", "first-key", "--api-key", "second") as s:
        paths = ["/", "/ping", "/version", "/v1/models", "/metrics", "/load", "/openapi.json", "/tokenizer_info", "/absent",
                 "/health/", "/v1/models/x"]
        assert s.request("GET", "/health")[0] == 200
        for path in paths:
            is_refused(s.request("GET", path), 401, None, "invalid_api_key")
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/messages"):
            assert s.post(path, KNOWN)[0] == 401
        for name, value in [("Authorization", "Bearer wrong"), ("Authorization", "Bearer "), ("Authorization", "second"),
                            ("Authorization", "Bearer secondsecond"), ("x-api-key", "first"), ("x-api-key", ""),
                            ("Authorization", "Basic !!!!"), ("Authorization", "Basic " + "A" * 4000),
                            ("Authorization", "Basic " + base64.b64encode(b"second").decode())]:
            assert s.request("GET", "/v1/models", headers={name: value})[0] == 401, (name, value)
        basic = "Basic " + base64.b64encode(b"anyone:second").decode()
        for name, value in [("Authorization", "Bearer second"), ("authorization", "bearer first-key"), ("x-api-key", "second"),
                            ("Authorization", "Bearer   second"), ("Authorization", "Basic  " + basic[6:]),
                            ("Authorization", basic)]:
            assert s.request("GET", "/v1/models", headers={name: value})[0] == 200, (name, value)
        for own, said, status in [("wrong", "Bearer second", 200), ("", "Bearer second", 200), ("second", "Bearer wrong", 200),
                                  ("second", "Digest x", 200), ("wrong", "Bearer wrong", 401), ("", "Bearer", 401)]:
            headers = {"x-api-key": own, "Authorization": said}
            assert s.request("GET", "/v1/models", headers=headers)[0] == status, headers


def cors(headers):
    return {k[15:].lower(): v for k, v in headers.items() if k.lower().startswith("access-control-")}


def ask_first(s, origin, **more):
    """A browser's question before it sends a request for a page of another origin."""
    return s.request("OPTIONS", "/v1/chat/completions", headers={
        "Origin": origin, "Access-Control-Request-Method": "POST", **more})


def test_origins():
    """Pages of the listed origins may use the server from a browser: the question needs no key, and every answer says so."""
    page, exposed = "http://localhost:3000", "x-quern-ignored, x-request-id"
    asks = {"Access-Control-Request-Headers": "authorization,content-type"}
    key = {**JSON, "Authorization": "Bearer k"}
    with Server("--api-key", "k", "--allowed-origins", json.dumps([page, "http://other"])) as s:
        for origin in (page, "http://other"):
            status, headers, body = ask_first(s, origin, **asks)
            assert (status, body) == (204, "") and headers["Vary"] == "Origin" and headers["Content-Type"] is None, headers
            got = cors(headers)
            assert got["allow-origin"] == origin and got["allow-headers"] == "authorization,content-type", got
            assert "POST" in got["allow-methods"] and int(got["max-age"]) > 0 and "allow-credentials" not in got, got
        assert "allow-headers" not in cors(ask_first(s, page)[1])
        body = {"prompt": "Once", "max_tokens": 1}
        answers = {200: s.post("/v1/completions", body, headers={**key, "Origin": page}),
                   400: s.post("/v1/completions", {}, headers={**key, "Origin": page}),
                   401: s.post("/v1/completions", body, headers={**JSON, "Origin": page}),
                   404: s.request("GET", "/absent", headers={**key, "Origin": page}),
                   405: s.request("OPTIONS", "/v1/completions", headers={**key, "Origin": page}),
                   415: s.post("/v1/completions", "x", headers={"Authorization": "Bearer k", "Origin": page})}
        for code, (status, headers, _) in answers.items():
            assert status == code and headers["Vary"] == "Origin", (code, status)
            assert cors(headers) == {"allow-origin": page, "expose-headers": exposed}, (code, headers)
        _, headers, text = s.post("/v1/completions", {**body, "stream": True}, headers={**key, "Origin": page})
        assert cors(headers)["allow-origin"] == page and text.endswith("data: [DONE]\n\n"), (headers, text)
        status, headers, _ = ask_first(s, "http://foreign", **asks)  # a page that is not listed
        assert status == 401 and not cors(headers) and headers["Vary"] == "Origin", (status, headers)
        status, headers, _ = s.post("/v1/completions", body, headers={**key, "Origin": "http://foreign"})
        assert status == 200 and not cors(headers), headers
    with Server("--allowed-origins", "*") as s:
        status, headers, _ = ask_first(s, "http://foreign", **asks)
        assert status == 204 and cors(headers)["allow-origin"] == "*", headers
        assert cors(s.request("GET", "/health")[1]) == {"allow-origin": "*", "expose-headers": exposed}
    with Server() as s:  # without the option
        status, headers, _ = ask_first(s, page, **asks)
        assert status == 405 and not cors(headers) and headers["Vary"] is None, headers
        assert not cors(s.request("GET", "/health", headers={"Origin": page})[1])
    for wrong in ("http://x", "{}", "[1]", '["a"'):
        done = subprocess.run([QUERN, "serve", TINY, "--allowed-origins", wrong], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and "--allowed-origins: want" in done.stderr, done


def test_key_of_environment():
    with Server(env={"QUERN_API_KEY": "of-env"}) as s:
        assert s.request("GET", "/v1/models")[0] == 401
        assert s.request("GET", "/v1/models", headers={"x-api-key": "of-env"})[0] == 200


def test_cache_spaces():
    """A prompt of one key, or salt, is no hit of another's, and hits change no bit."""
    ask = {"prompt": [i % 900 + 100 for i in range(200)], "max_tokens": 4, "temperature": 0, "logprobs": 0}
    with Server("--api-key", "a", "--api-key", "b") as s:
        def cached(key, **more):
            status, _, body = s.post("/v1/completions", {**ask, **more}, headers={**JSON, "x-api-key": key})
            assert status == 200, body
            return body["usage"]["prompt_tokens_details"]["cached_tokens"], body["choices"]
        seen = [cached("a"), cached("a"), cached("b"), cached("b"), cached("a", cache_salt="x"), cached("a", cache_salt="x")]
        assert [n for n, _ in seen] == [0, 192, 0, 192, 0, 192], seen
        assert all(c == seen[0][1] for _, c in seen)
    with Server("--no-enable-prefix-caching") as s:
        assert [s.good("/v1/completions", ask)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)] == [0, 0]


def test_root_path():
    with Server("--root-path", "/quern") as s:
        assert s.request("GET", "/quern/health")[0] == s.request("GET", "/health")[0] == 200
        assert s.request("GET", "/quernhealth")[0] == 404
        assert s.request("GET", "/quern/openapi.json")[2]["servers"] == [{"url": "/quern"}]


def test_engine_breaks():
    """The weights' file shrinks while it is in use: an error for those who wait, 503, exit code 1."""
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree(TINY, f"{folder}/model")
        s = Server(model=model)
        c, r = streaming(s, LONG)
        r.read(10)
        os.truncate(f"{model}/model.safetensors", 4096)
        end = r.read().decode()
        assert '"code":"engine_stalled"' in end and "shrank" in end, end[-500:]
        with contextlib.suppress(OSError):
            is_refused(s.request("GET", "/health"), 503, None, "engine_stalled")
        c.close()
        s.until(lambda: s.process.poll() is not None, 5)
        assert s.process.returncode == 1 and "shrank" in s.process.stderr.read()


def closed_pipe():
    to_read, to_write = os.pipe()
    os.close(to_read)
    return to_write


def test_log_cannot_be_written():
    """stderr on a full disk, or a pipe whose reader left: the server serves and drains."""
    for log in (os.open("/dev/full", os.O_WRONLY), closed_pipe()):
        with socket.socket() as c:
            c.bind(("127.0.0.1", 0))
            port = c.getsockname()[1]
        p = subprocess.Popen([QUERN, "serve", TINY, "--port", str(port), "--backend", "cpu"], stderr=log)
        os.close(log)
        try:
            for _ in range(300):
                assert p.poll() is None, p.returncode
                with contextlib.suppress(OSError):
                    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                    c.request("POST", "/v1/completions", json.dumps(KNOWN), JSON)
                    answer = c.getresponse()
                    if answer.status == 200:
                        break
                time.sleep(0.1)
            assert json.loads(answer.read())["choices"][0]["text"] == known()[0]
            c.close()
            p.send_signal(signal.SIGTERM)
            assert p.wait(20) == 0
        finally:
            p.kill()


def test_same_after_restart():
    text, logprobs = known()
    for _ in range(2):
        with Server() as s:
            s.check_sound()
            choice = s.good("/v1/completions", KNOWN)
            assert choice["choices"][0]["text"] == text and choice["choices"][0]["logprobs"]["token_logprobs"] == logprobs
    with Server("--threads", "1") as s:
        assert s.good("/v1/completions", KNOWN)["system_fingerprint"] == choice["system_fingerprint"]
        s.check_sound()


main(globals())
