# manual.sh - every option and command of the table is in the manual page and in each completion
# script, and roff has nothing to complain about.
. tests/cli/common.bash

python3 - "$Q" <<'PY' || die "the table and what is made from it differ"
import re, subprocess, sys

table = open("src/cli/options.def", encoding="utf-8").read()
options = re.findall(r'\bOPTION\(\w+,\s*"([a-z-]+)",\s*(?:0|\'(.)\')', table)
sampling = open("src/base/sampling.def", encoding="utf-8").read()
options += re.findall(r'\bSAMPLING\w*\(.*\n\s*"([a-z-]+)",\s*(?:0|\'(.)\')', sampling)
options += [(name, "") for name in re.findall(r'\bSAMPLING_FORM\(\w+, "\w+", \w+, \d, "([a-z-]+)"', sampling)]
commands = re.findall(r'\bCOMMAND\(\w+,\s*\w+,\s*"([a-z ]+)"', table)
wrong = [] if len(options) > 40 and len(commands) > 10 else [f"read {len(options)} options"]


def text(*args):
    return subprocess.run([sys.argv[1], *args], capture_output=True, text=True, check=True).stdout


man = text("man")
shells = {shell: text("completion", shell) for shell in ("bash", "zsh", "fish")}
for name, letter in options:
    if f"\\fB\\-\\-{name.replace('-', chr(92) + '-')}\\fR" not in man:
        wrong.append(f"man: no --{name}")
    if letter and f"\\fB\\-{letter}\\fR, \\fB\\-\\-{name.replace('-', chr(92) + '-')}" not in man:
        wrong.append(f"man: no -{letter}")
    for shell, script in shells.items():
        want = rf"-l {name}\b" if shell == "fish" else rf"--{name}\b"
        if not re.search(want, script):
            wrong.append(f"{shell}: no --{name}")
for command in commands:
    if f"\\fB{command}\\fR" not in man:
        wrong.append(f"man: no {command}")
    for shell, script in shells.items():
        if not all(re.search(rf"\b{word}\b", script) for word in command.split()):
            wrong.append(f"{shell}: no {command}")
for name in ("QN_DUMP", "QN_DUMP_DIR", "QN_NVRTC", "QN_CUDA_DEVICE", "QN_CACHE_DIR"):
    if f".B {name}\n" not in man:
        wrong.append(f"man: no {name}")
if "QN_DUMP=STAGE" not in text("--help"):
    wrong.append("--help: no QN_DUMP")
print(*wrong, sep="\n", end="")
sys.exit(1 if wrong else 0)
PY

run 0 man
cp "$T/out" "$T/quern.1"
if command -v groff >/dev/null; then
    groff -man -Tutf8 -ww "$T/quern.1" >"$T/out" 2>"$T/err" || die "groff"
    [ ! -s "$T/err" ] || die "groff has warnings"
    [ "$(wc -l <"$T/out")" -gt 100 ] || die "a short page"
fi
if command -v mandoc >/dev/null; then
    mandoc -T lint -W error "$T/quern.1" >"$T/err" || die "mandoc"
fi
exit 0
