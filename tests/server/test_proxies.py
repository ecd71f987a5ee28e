"""nginx and haproxy in front of two servers: streams pass unbuffered, one server that is killed is left out, and no
answer is wrong. Exit status 77 where neither is installed."""
import http.client
import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from common import JSON, KNOWN, Server, known, main, skip, socket

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
  default_backend quern
backend quern
  balance roundrobin
  option httpchk GET /health
  server a 127.0.0.1:{a} check inter 200ms fall 1 rise 1 observe layer7 error-limit 1 on-error mark-down
  server b 127.0.0.1:{b} check inter 200ms fall 1 rise 1 observe layer7 error-limit 1 on-error mark-down
"""

PROXIES = {"nginx": (NGINX, lambda config: ["nginx", "-c", config]), "haproxy": (HAPROXY, lambda config: ["haproxy", "-f", config])}
INSTALLED = [n for n in PROXIES if shutil.which(n, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")]
if not INSTALLED:
    skip("neither nginx nor haproxy is installed")


def free_port():
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        return c.getsockname()[1]


def post(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps(body), JSON)
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def stream_is_not_held_back(port):
    """The first event comes long before the last: chunks pass as they are made."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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
    config, command = PROXIES[name]
    with tempfile.TemporaryDirectory() as folder, Server() as a, Server() as b:
        port = free_port()
        file = pathlib.Path(folder, "config")
        file.write_text(config.format(folder=folder, port=port, a=a.port, b=b.port))
        path = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        proxy = subprocess.Popen([path, *command(str(file))[1:]], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            a.until(lambda: answers(port))
            stream_is_not_held_back(port)
            assert many(port, 4, 5) == []
            # One ends as it should: its requests finish, the others go to its neighbour.
            wrong = many(port, 4, 10, after=lambda: a.process.terminate())
            assert wrong == [], wrong
            assert a.process.wait(20) == 0
            assert many(port, 4, 3) == []
        finally:
            proxy.terminate()
            proxy.wait()
        b.check_sound()


def killed(name):
    """One is killed under load: clients of its running requests see an error, never a wrong answer; later ones none."""
    config, command = PROXIES[name]
    with tempfile.TemporaryDirectory() as folder, Server() as a, Server() as b:
        port = free_port()
        file = pathlib.Path(folder, "config")
        file.write_text(config.format(folder=folder, port=port, a=a.port, b=b.port))
        path = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        proxy = subprocess.Popen([path, *command(str(file))[1:]], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            a.until(lambda: answers(port))
            wrong = many(port, 4, 12, after=lambda: a.process.kill())
            assert all(status in (502, 503, 504) for status, _ in wrong) and len(wrong) <= 8, wrong
            a.process.wait()
            time.sleep(0.5)
            assert many(port, 4, 3) == []
        finally:
            proxy.terminate()
            proxy.wait()
        b.check_sound()


def answers(port):
    try:
        return post(port, KNOWN)[0] == 200
    except OSError:
        return False


def test_nginx():
    if "nginx" in INSTALLED:
        through("nginx")
        killed("nginx")


def test_haproxy():
    if "haproxy" in INSTALLED:
        through("haproxy")
        killed("haproxy")


main(globals())
