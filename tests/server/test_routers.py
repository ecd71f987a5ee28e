"""sglang-router and vllm-router in front of two servers: python3 test_routers.py QUERN FOLDER, where the packages are
kept. Answers and streams pass; one server is killed under load, no answer is wrong, and later ones all pass. Exit status
77 where the packages cannot be had."""
import os
import pathlib
import sys
import threading
import time

FOLDER = sys.argv.pop(2)

from common import JSON, Server, events, front, http, json, main  # noqa: E402
from venv import python  # noqa: E402

PYTHON = python(FOLDER)
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 24, "temperature": 0}
ROUTERS = {
    "sglang": ([PYTHON, "-m", "sglang_router.launch_router"], ["--policy", "cache_aware"]),
    "vllm": ([str(pathlib.Path(PYTHON).parent / "vllm-router")], ["--policy", "consistent_hash"]),
}


def post(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        r = c.getresponse()
        return r.status, r.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        c.close()


def many(port, n_threads, each, want, after=None):
    """How many were answered; those that had an answer had the right one."""
    done, lock = [], threading.Lock()

    def one():
        for i in range(each):
            status, text = post(port, {**ASK, "user": str(i)})
            with lock:
                done.append(status)
            if status == 200:
                assert json.loads(text)["choices"][0]["message"]["content"] == want, text
    threads = [threading.Thread(target=one) for _ in range(n_threads)]
    for t in threads:
        t.start()
    if after:
        while len(done) < n_threads:
            time.sleep(0.01)
        after()
    for t in threads:
        t.join()
    return done


def through(name):
    command, policy = ROUTERS[name]
    with Server("--served-model-name", "tiny") as a, Server("--served-model-name", "tiny") as b:
        want = b.good("/v1/chat/completions", ASK)["choices"][0]["message"]["content"]
        urls = [f"http://127.0.0.1:{a.port}", f"http://127.0.0.1:{b.port}"]
        with front(2, lambda port, metrics: [*command, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls,
                                             *policy, "--prometheus-port", str(metrics)],
                   answers=lambda port: post(port, ASK)[0] == 200) as (port, _):
            chunks = events(post(port, {**ASK, "stream": True})[1])
            assert chunks[-1] == "[DONE]"
            assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == want
            assert many(port, 4, 5, want) == [200] * 20
            done = many(port, 4, 10, want, after=lambda: (a.process.kill(), a.process.wait()))
            assert len(done) == 40 and done.count(200) > 20, done
            b.until(lambda: many(port, 4, 3, want) == [200] * 12, 180)
        b.until(b.idle)


def test_sglang_router():
    through("sglang")


def test_vllm_router():
    through("vllm")


main(globals())
