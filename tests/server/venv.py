"""A Python with packages from the registry, in the build folder: made once, by tools/install_deps.sh --all or by the
first test that wants it, skipped where the registry cannot be reached.

    python3 tests/server/venv.py FOLDER       makes it there"""
import atexit
import fcntl
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile

PACKAGES = ["openai", "anthropic", "litellm", "langchain-openai", "lm-eval[api]", "schemathesis", "requests",
            "sglang-router", "vllm-router", "instructor", "openai-agents", "pydantic-ai-slim[openai]"]

# Imports what most scripts want, which takes seconds, and forks for each script; a script goes on as the main module.
# Frozen objects stay in pages that the processes share.
FORKS = """
import gc, json, os, sys
import anthropic, openai
import openai.resources.chat, openai.resources.responses, anthropic.resources.messages
gc.collect()
gc.freeze()
for line in sys.stdin:
    script, log = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
log = os.open(log, os.O_WRONLY)
os.dup2(log, 1)
os.dup2(log, 2)
exec(script)
"""


class Scripts:
    """Runs scripts in the packages' Python, each in a process of its own."""

    def __init__(self, exe, env):
        self.forks = subprocess.Popen([exe, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        atexit.register(self.forks.communicate)

    def run(self, script, timeout=240):
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
            self.forks.stdin.write(json.dumps([script, log.name]) + "\n")
            self.forks.stdin.flush()
            ended = select.select([self.forks.stdout], [], [], timeout)[0]
            if not ended: # its answer would be taken for the next script's
                self.forks.kill()
            status = self.forks.stdout.readline().strip() if ended else f"it ran for {timeout} s"
            assert status == "0", f"{status}: {log.read()[-4500:]}"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def python(folder):
    """The interpreter that has PACKAGES. It keeps what it compiles: some of them take seconds."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    home = pathlib.Path(folder).resolve()
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{home}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make(home)


def make(home):
    exe, done = home / "bin" / "python", home / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if done.exists() and done.read_text() == wanted:
        return str(exe)
    made = subprocess.run([sys.executable, "-m", "venv", home], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"no venv here: {made.stderr.strip()[-200:]}")
    pip = [exe, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    got = subprocess.run([*pip, "uv"], capture_output=True, text=True)
    if got.returncode == 0: # a tenth of pip's time
        got = subprocess.run([exe, "-m", "uv", "pip", "install", "-q", "--no-cache", "--python", exe, *PACKAGES],
                             capture_output=True, text=True)
    if got.returncode != 0: # uv knows no index that pip is configured with
        got = subprocess.run([*pip, *PACKAGES], capture_output=True, text=True)
    if got.returncode != 0:
        skip(f"the package registry cannot be reached from here: {got.stderr.strip()[-200:]}")
    done.write_text(wanted)
    return str(exe)


def main():
    """Makes it, with what its packages compile to: a first import takes seconds."""
    exe = python(sys.argv[1])
    subprocess.run([exe, "-m", "compileall", "-q", "-j", "0", pathlib.Path(exe).parent.parent / "lib"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
