"""Packages from the registry in a folder of the build, for the tests beside this file."""
import importlib
import pathlib
import subprocess
import sys


def load(folder, *packages):
    """The modules of packages ("name==version"), fetched into `folder` when they are not there; exits with 77 where
    they cannot be."""
    target = pathlib.Path(folder) / "pip"
    sys.path.insert(0, str(target))
    wanted = [p for p in packages if not list(target.glob(p.split("==")[0].replace("-", "_") + "-*"))]
    if wanted:
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1",
                   "--timeout", "20", "--target", target, *wanted]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            print("skipped: the package registry cannot be reached from here")
            sys.exit(77)
    return [importlib.import_module(p.split("==")[0]) for p in packages]
