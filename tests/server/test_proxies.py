"""nginx and haproxy in front of two servers: streams pass unbuffered, one server that is killed is left out, and no
answer is wrong; and both in front as the end of TLS. Exit status 77 where neither is installed."""
import contextlib
import http.client
import json
import pathlib
import shutil
import ssl
import subprocess
import tempfile
import threading
import time

from common import JSON, KNOWN, Server, front, known, main, skip

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream quern {{ least_conn; server 127.0.0.1:{a} max_fails=1 fail_timeout=2s;
                    server 127.0.0.1:{b} max_fails=1 fail_timeout=2s; keepalive 32; }}
  server {{
    listen 127.0.0.1:{port};
    listen 127.0.0.1:{tls} ssl; ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    client_max_body_size 16m;
    location / {{
      proxy_pass http://quern; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_read_timeout 600s;
      proxy_next_upstream error timeout http_503 non_idempotent;
    }}
  }}
}}
"""

HAPROXY = """
defaults
  mode http
  timeout connect 2s
  timeout client 600s
  timeout server 600s
  option redispatch 1
  option http-buffer-request
  retries 3
  retry-on conn-failure empty-response 503
frontend in
  bind 127.0.0.1:{port}
  bind 127.0.0.1:{tls} ssl crt {folder}/both.pem
  default_backend quern
backend quern
  balance roundrobin
  option httpchk GET /health
  server a 127.0.0.1:{a} check inter 200ms fall 1 rise 1 observe layer7 error-limit 1 on-error mark-down
  server b 127.0.0.1:{b} check inter 200ms fall 1 rise 1 observe layer7 error-limit 1 on-error mark-down
"""

PATH = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
PROXIES = {"nginx": (NGINX, lambda config: ["nginx", "-c", config]), "haproxy": (HAPROXY, lambda config: ["haproxy", "-f", config])}
INSTALLED = [n for n in PROXIES if shutil.which(n, path=PATH)]
if not INSTALLED:
    skip("neither nginx nor haproxy is installed")


def certify(folder):
    """A certificate of a day for 127.0.0.1, signed by itself."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
                   check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())


@contextlib.contextmanager
def behind(name, a, b):
    """The proxy in front of two servers: its port, its port for TLS, and what trusts its certificate."""
    config, command = PROXIES[name]
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        certify(folder)

        def words(port, tls):
            (folder / "config").write_text(config.format(folder=folder, port=port, tls=tls, a=a.port, b=b.port))
            program, *rest = command(str(folder / "config"))
            return [shutil.which(program, path=PATH), *rest]
        with front(2, words, answers) as (port, tls):
            yield port, tls, ssl.create_default_context(cafile=folder / "cert.pem")


def connect(port, trust=None):
    if trust:
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trust)
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def post(port, body, trust=None, headers=JSON):
    c = connect(port, trust)
    c.request("POST", "/v1/completions", json.dumps(body), headers)
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def stream_is_not_held_back(port, trust=None):
    """The first event comes long before the last: chunks pass as they are made."""
    c = connect(port, trust)
    c.request("POST", "/v1/completions", json.dumps({**KNOWN, "max_tokens": 900, "stream": True}), JSON)
    r = c.getresponse()
    began = time.monotonic()
    first = r.read1(100)
    soon = time.monotonic() - began
    rest = r.read()
    whole = time.monotonic() - began
    c.close()
    assert first and b"[DONE]" in rest and soon < whole / 3, (soon, whole)


def many(port, n_threads, each, after=None):
    text, _ = known()
    wrong, lock, done = [], threading.Lock(), []

    def one():
        for _ in range(each):
            status, data = post(port, KNOWN)
            right = status == 200 and json.loads(data)["choices"][0]["text"] == text
            with lock:
                done.append(right)
                if not right:
                    wrong.append((status, data[:200]))
    threads = [threading.Thread(target=one) for _ in range(n_threads)]
    for t in threads:
        t.start()
    if after:
        while len(done) < n_threads:
            time.sleep(0.01)
        after()
    for t in threads:
        t.join()
    return wrong


def through(name):
    with Server() as a, Server() as b:
        with behind(name, a, b) as (port, _, _):
            stream_is_not_held_back(port)
            assert many(port, 4, 5) == []
            # One ends as it should: its requests finish, the others go to its neighbour.
            wrong = many(port, 4, 10, after=lambda: a.process.terminate())
            assert wrong == [], wrong
            assert a.process.wait(20) == 0
            assert many(port, 4, 3) == []
        b.check_sound()


def killed(name):
    """One is killed under load: clients of its running requests see an error, never a wrong answer; later ones none."""
    with Server() as a, Server() as b:
        with behind(name, a, b) as (port, _, _):
            wrong = many(port, 4, 12, after=lambda: a.process.kill())
            assert all(status in (502, 503, 504) for status, _ in wrong) and len(wrong) <= 8, wrong
            a.process.wait()
            time.sleep(0.5)
            assert many(port, 4, 3) == []
        b.check_sound()


def encrypted(name):
    """TLS ends at the proxy: known bits, streams as they are made, a client that leaves frees its blocks; who does not
    know the certificate, or speaks without TLS, gets no answer."""
    text, logprobs = known()
    with Server() as a, Server() as b, behind(name, a, b) as (_, tls, trust):
        for _ in range(4):
            status, data = post(tls, KNOWN, trust)
            choice = json.loads(data)["choices"][0]
            assert (status, choice["text"], choice["logprobs"]["token_logprobs"]) == (200, text, logprobs)
        stream_is_not_held_back(tls, trust)
        c = connect(tls, trust)
        c.request("POST", "/v1/completions", json.dumps({**KNOWN, "max_tokens": 900, "stream": True}), JSON)
        assert c.getresponse().read1(100)
        assert a.kv_blocks("held") + b.kv_blocks("held") > 0
        c.sock.close()
        c.close()
        a.until(lambda: a.kv_blocks("held") + b.kv_blocks("held") == 0, 2)
        for strange in (ssl.create_default_context(), None):
            try:
                assert post(tls, KNOWN, strange)[0] == 400
            except (ssl.SSLCertVerificationError, http.client.BadStatusLine, ConnectionError):
                pass


def guarded(name):
    """A key passes through the proxy; without it nothing does."""
    key = {**JSON, "Authorization": "Bearer secret"}
    with Server("--api-key", "secret") as a, Server("--api-key", "secret") as b, behind(name, a, b) as (_, tls, trust):
        assert post(tls, KNOWN, trust, key)[0] == 200
        assert post(tls, KNOWN, trust)[0] == 401


def answers(port):
    try:
        return post(port, KNOWN)[0] in (200, 401)
    except (OSError, http.client.HTTPException):
        return False


def test_nginx():
    if "nginx" in INSTALLED:
        through("nginx")
        killed("nginx")
        encrypted("nginx")
        guarded("nginx")


def test_haproxy():
    if "haproxy" in INSTALLED:
        through("haproxy")
        killed("haproxy")
        encrypted("haproxy")
        guarded("haproxy")


main(globals())
