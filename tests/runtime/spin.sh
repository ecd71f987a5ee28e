#!/bin/bash
# Runs the Spin models of the runtime (src/runtime/*.pml) exhaustively; needs spin and a C compiler.
# Exit status 0: no error in any; 77: spin is not installed. Takes about half a minute.
set -euo pipefail

command -v spin >/dev/null || { echo "spin is not installed" >&2; exit 77; }
models=$(cd "$(dirname "$0")/../../src/runtime" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# check MODEL [-DNAME=VALUE...]
check() {
    local model=$1
    shift
    cp "$models/$model.pml" .
    spin "$@" -a "$model.pml" >/dev/null
    ${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 -o pan pan.c
    ./pan -m1000000 >log
    grep -q 'errors: 0' log && ! grep -q 'max search depth too small\|Search not completed' log || {
        echo "$model $*: FAILED" >&2
        head -20 log >&2
        exit 1
    }
    echo "$model $*: $(grep -o '[0-9]* states, stored' log)"
}

check protocol -DGRAPH=1
check protocol -DGRAPH=2
check protocol -DGRAPH=3
check blocks -DBLOCKS=4
check blocks -DBLOCKS=5
check blocks -DBLOCKS=7
