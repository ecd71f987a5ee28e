"""A Python with packages from the registry, in the build folder: made once, by tools/install_deps.sh --all or by the
first test that wants it, skipped where the registry cannot be reached.

    python3 tests/server/venv.py FOLDER       makes it there"""
import fcntl
import os
import pathlib
import subprocess
import sys

PACKAGES = ["openai", "anthropic", "litellm", "langchain-openai", "lm-eval[api]", "schemathesis", "requests",
            "sglang-router", "vllm-router", "instructor", "openai-agents", "pydantic-ai-slim[openai]"]


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
