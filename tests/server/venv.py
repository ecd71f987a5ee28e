"""A Python with packages from the registry, in the build folder: made once, skipped where it cannot be reached."""
import pathlib
import subprocess
import sys

from common import skip

PACKAGES = ["openai", "anthropic", "litellm", "langchain-openai", "lm-eval[api]", "schemathesis", "requests",
            "sglang-router", "vllm-router"]


def python(folder):
    """The interpreter that has PACKAGES."""
    home = pathlib.Path(folder).resolve()
    exe, done = home / "bin" / "python", home / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if done.exists() and done.read_text() == wanted:
        return str(exe)
    made = subprocess.run([sys.executable, "-m", "venv", home], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"no venv here: {made.stderr.strip()[-200:]}")
    got = subprocess.run([exe, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--timeout",
                          "20", *PACKAGES], capture_output=True, text=True)
    if got.returncode != 0:
        skip(f"the package registry cannot be reached from here: {got.stderr.strip()[-200:]}")
    done.write_text(wanted)
    return str(exe)
