"""schemathesis on /openapi.json: python3 test_schema.py QUERN FOLDER, where the packages are kept. Every route with
bodies that fit the description and bodies that do not. Exit status 77 where the package cannot be had."""
import pathlib
import subprocess
import sys
import tempfile

FOLDER = sys.argv.pop(2)

from common import DEEP, Server, json, main  # noqa: E402
from venv import python  # noqa: E402

# An unknown method is the HTTP library's to answer: 501. A body that fits may still ask for more than the context has
# room for, or have fields that exclude each other: no schema says so, and such a 400 is right.
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]
[checks.unsupported_method]
enabled = false
[checks.positive_data_acceptance]
enabled = false
"""


def test_openapi():
    exe = pathlib.Path(python(FOLDER)).parent / "schemathesis"
    with Server("--api-key", "k", "--max-num-seqs", "4") as s, tempfile.TemporaryDirectory() as folder:
        spec = s.request("GET", "/openapi.json", headers={"x-api-key": "k"})[2]
        config, file = pathlib.Path(folder, "schemathesis.toml"), pathlib.Path(folder, "openapi.json")
        config.write_text(CONFIG)
        file.write_text(json.dumps(spec))
        done = subprocess.run([exe, "--config-file", config, "run", file, "--url", f"http://127.0.0.1:{s.port}", "-H",
                               "Authorization: Bearer k", "--max-examples", "12" if DEEP else "4", "--phases",
                               "examples,coverage,fuzzing", "--seed", "45", "--continue-on-failure"], capture_output=True, text=True, cwd=folder,
                              timeout=400)
        assert done.returncode == 0, done.stdout[-6000:]
        s.until(lambda: s.request("GET", "/load", headers={"x-api-key": "k"})[2]["server_load"] == 0)


main(globals())
