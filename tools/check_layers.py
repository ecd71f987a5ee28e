#!/usr/bin/env python3
"""Holds the #include lines of src/ to the written dependency order between its folders.

    base <- {graph, grammar, chat}
    graph <- {model, plan, block <- search}
                     plan <- task <- codegen <- engine <- inspect
                     quern.h <- server <- cli
    kernels, runtime see base, graph, task/program.h and each other's contract headers only

Prints one line per violation and ends with their number; exit status 1 if there are any.
"""
import pathlib
import re
import sys

# folder -> folders whose headers it may include
MAY_SEE = {
    "base": {"base"},
    "graph": {"base", "graph"},
    "block": {"base", "graph", "block"},
    "search": {"base", "graph", "block", "search"},
    "grammar": {"base", "grammar"},
    "chat": {"base", "chat"},
    "model": {"base", "graph", "model"},
    "plan": {"base", "graph", "plan"},
    "task": {"base", "graph", "plan", "task"},
    "kernels": {"base", "graph", "kernels"},
    "runtime": {"base", "graph", "runtime", "kernels"},
    "codegen": {"base", "graph", "plan", "task", "codegen"},
    "engine": {"base", "graph", "block", "grammar", "chat", "model", "plan", "task", "kernels", "runtime", "codegen",
               "engine"},
    "inspect": {"base", "graph", "block", "search", "model", "plan", "task", "runtime", "codegen", "engine",
                "inspect"},
    # plus the public header: the server and the commands are users of the library
    "server": {"base", "server"},
    "cli": {"base", "server", "cli"},
}
# headers that are contracts between folders: (folder that includes, header)
CONTRACTS = {
    ("plan", "codegen/cuda_abi.h"),  # what a block of the kernels has room for
    ("kernels", "task/program.h"),
    ("kernels", "runtime/rt_batch.h"),
    ("runtime", "task/program.h"),
    ("runtime", "task/program_map.h"),  # the maps that a run keeps
}
# Device code and its host-side contract see the runtime's loops, which are written once for both.
CONTRACT_PREFIXES = [
    ("kernels", "runtime/rt_"),
    ("kernels", "codegen/cuda_abi.h"),
    ("codegen", "runtime/rt_"),
    ("codegen", "kernels/sampling_rng.h"),
    ("codegen", "kernels/cuda/"),
]


def allowed(folder, header):
    target = header.split("/")[0]
    if target not in MAY_SEE or target in MAY_SEE[folder]:
        return True
    return (folder, header) in CONTRACTS or any(
        folder == f and header.startswith(p) for f, p in CONTRACT_PREFIXES)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    bad = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".c", ".h", ".cuh", ".def"}:
            continue
        folder = path.relative_to(root).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if m and "/" in m.group(1) and not allowed(folder, m.group(1)):
                print(f"src/{path.relative_to(root)}:{number}: {folder} may not see {m.group(1)}")
                bad += 1
    print(f"layers: {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
