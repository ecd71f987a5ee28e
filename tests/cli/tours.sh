# tours.sh - the tours of docs/ are true: each line that they show below a command is in what the command
# prints. Left out are commands whose output has times or files, and those that start kernels.
. tests/cli/common.bash

replay() {
    python3 - "$Q" "$T" "$1" "$2" <<'PY' || die "docs/$1"
import os, re, subprocess, sys

quern, folder, page, least = sys.argv[1:]
text = open(f"docs/{page}", encoding="utf-8").read()
n, wrong = 0, []
for block in re.findall(r"^```\n(.*?)^```", text, re.S | re.M):
    for step in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.M)[1:]:
        command, *lines = [line.rstrip() for line in step.rstrip("\n").split("\n")]
        if not re.search(r"quern (graph|explain|inspect|verify) |^(grep|sed) ", command) or ".html" in command:
            continue
        command = re.sub(r"(build/)?\bquern ", quern + " ", command, count=1).replace("/tmp", folder)
        out = subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout
        said = " ".join(out.split())  # the page may break a line
        wrong += [f"{command}\n    does not print: {line}" for line in lines
                  if line != "..." and " ".join(line.split()) not in said]
        n += 1
if n < int(least):
    wrong.append(f"only {n} commands found")
print(*wrong, sep="\n", end="")
sys.exit(1 if wrong else 0)
PY
}

replay tour.md 8
emulator=$(dirname "$Q")/tests/emulator
[ -e "$emulator/libcuda.so.1" ] || exit 0
unset CUDA_VISIBLE_DEVICES
export LD_LIBRARY_PATH=$emulator QN_NVRTC=$emulator/libnvrtc.so QN_CUDA_LOOK_US=1000 QN_EMU_SMS=8 QN_CACHE_DIR=off
replay tour-gpu.md 8
