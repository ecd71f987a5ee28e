"""quern bench serve: both ways of arriving, its figures, and what it says of a server that refuses."""
import json
import subprocess

from common import QUERN, Server, main

s = Server("--served-model-name", "tiny", "--api-key", "k")


def bench(*args, code=0):
    if "--output-len" not in args:
        args = ("--output-len", "6", *args)
    done = subprocess.run([QUERN, "bench", "serve", "--api-key", "k", "--input-len", "8", *args],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def test_closed_loop():
    made = json.loads(bench("--port", str(s.port), "--num-prompts", "40", "--max-concurrency", "4", "--format", "json").stdout)
    assert (made["completed"], made["failed"], made["max_concurrency"]) == (40, 0, 4)
    assert made["total_input_tokens"] == 320 and made["total_output_tokens"] == 240
    for kind in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < made[f"median_{kind}_ms"] <= made[f"p90_{kind}_ms"] <= made[f"p99_{kind}_ms"]
    assert made["median_ttft_ms"] <= made["median_e2el_ms"]
    assert abs(made["request_throughput"] * made["duration"] - 40) < 0.01


def test_tokens_without_text():
    """A token may be a part of a character: an answer of one such token has no text, and is no failure."""
    made = json.loads(bench("--port", str(s.port), "--num-prompts", "500", "--output-len", "1", "--format", "json").stdout)
    assert (made["completed"], made["failed"], made["total_output_tokens"]) == (500, 0, 500), made


def test_poisson():
    done = bench(f"http://127.0.0.1:{s.port}/", "--num-prompts", "60", "--request-rate", "100", "--served-model-name", "tiny",
                 "--format", "json")
    made = json.loads(done.stdout)
    assert made["completed"] == 60 and 0.2 < made["duration"] < 20
    assert "requests/s" in bench(f"http://127.0.0.1:{s.port}", "--num-prompts", "2").stdout


def test_failures():
    assert "does not exist" in bench("--port", str(s.port), "--num-prompts", "2", "--served-model-name", "absent", code=1).stderr
    assert "broke" in bench("--port", "1", "--num-prompts", "2", code=1).stderr
    for wrong in (["ftp://x"], ["http://x:99999"], ["--num-prompts", "0"], ["--max-concurrency", "0"], ["--request-rate", "-1"],
                  ["http://x", "--port", "1"]):
        bench(*wrong, code=2)


def test_sound():
    s.end()


main(globals())
