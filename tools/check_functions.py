#!/usr/bin/env python3
"""Holds the functions of src/ to 60 lines, from the first line of the signature to the closing brace.

Rows of a flat table are not counted, however many there are:

    case OP_LINEAR: return 16;       a case of a switch with all that it does in its line
    {"launch", "aot|jit", set},      the lines of an initializer, from "= {" to "};"

What is no row counts, so a table inside a long function does not excuse the function.

The layout is clang-format's: a function begins at the margin, its last line is "}" at the margin.
Prints one line for each function that is longer and ends with their number; exit status 1 if there
are any. With a number as argument: the functions of at least so many lines, longest first.
"""
import pathlib
import re
import sys

LIMIT = 60

COMMENT = re.compile(r"\s*(/\*.*\*/|//.*)$")
CASE = re.compile(r"\s+(case [^:?]+|default):\s.*(;|\})$")


def functions(lines):
    """(index of the first line of the signature, of the last line) of each function."""
    start, inside = None, False  # start: of the signature, if it can be one
    for i, line in enumerate(lines):
        line = COMMENT.sub("", line)
        if inside:
            if line.startswith("}"):
                yield start, i
                start, inside = None, False
        elif line.startswith((" *", "/*", "//")):
            continue
        elif line.endswith(") {"):
            start, inside = i if start is None else start, True
        elif line.endswith((";", "}", "{")) or line == "" or line.startswith("#"):
            start = None
        elif start is None:
            start = i


def counted(lines):
    """How many of a function's lines are no rows of a flat table."""
    n, table = 0, False
    for line in lines:
        if table:
            table = not line.endswith("};")
        elif line.endswith("= {"):
            n, table = n + 1, True
        elif not CASE.match(COMMENT.sub("", line)):
            n += 1
    return n


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    at_least = int(sys.argv[1]) if len(sys.argv) > 1 else LIMIT + 1
    found = []
    n = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".c", ".h", ".cuh"}:
            continue
        lines = path.read_text().splitlines()
        for first, last in functions(lines):
            n += 1
            length = counted(lines[first:last + 1])
            if length >= at_least:
                found.append((length, f"src/{path.relative_to(root)}:{first + 1}", lines[first]))
    for length, where, text in sorted(found, reverse=True):
        print(f"{where}: {length} lines: {text}")
    print(f"functions: {n}, {len(found)} of {at_least} lines or more")
    return 1 if found and at_least > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
