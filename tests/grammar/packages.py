"""Packages from the registry in a folder of the build, for the tests beside this file.

    python3 tests/grammar/packages.py FOLDER       fetches them there; tools/install_deps.sh --all does"""
import importlib
import pathlib
import subprocess
import sys

LLGUIDANCE, XGRAMMAR, JSONSCHEMA = "llguidance==1.9.1", "xgrammar==0.2.8", "jsonschema==4.26.0"
XGRAMMAR_NEEDS = ["apache-tvm-ffi==0.1.15.post2", "numpy", "pydantic", "typing_extensions"]


def fetch(folder, *packages, dependencies=True):
    """Packages ("name==version") into `folder`, from where they can be imported afterwards; exits with 77 where they
    cannot be had."""
    target = pathlib.Path(folder) / "pip"
    if str(target) not in sys.path:
        sys.path.insert(0, str(target))
    wanted = [p for p in packages if not list(target.glob(p.split("==")[0].replace("-", "_") + "-*"))]
    if wanted:
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1",
                   "--timeout", "20", *([] if dependencies else ["--no-deps"]), "--target", target, *wanted]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            print("skipped: the package registry cannot be reached from here")
            sys.exit(77)


def load(folder, *packages):
    """The modules of packages, which are called as they are."""
    fetch(folder, *packages)
    return [importlib.import_module(p.split("==")[0]) for p in packages]


def main():
    folder = sys.argv[1]
    fetch(folder, LLGUIDANCE, JSONSCHEMA, *XGRAMMAR_NEEDS)
    fetch(folder, XGRAMMAR, dependencies=False)


if __name__ == "__main__":
    main()
