#!/bin/bash
# Runs the Spin models of the runtime (src/runtime/*.pml) exhaustively; needs spin and a C compiler.
# Exit status 0: no error in any; 77: spin is not installed. Takes about twenty seconds.
set -euo pipefail

command -v spin >/dev/null || { echo "spin is not installed" >&2; exit 77; }
models=$(cd "$(dirname "$0")/../../src/runtime" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# Searches all states of a model: search MODEL [-DNAME=VALUE...]
search() {
    local model=$1
    shift
    cp "$models/$model.pml" .
    spin "$@" -a "$model.pml" >/dev/null
    ${CC:-cc} -O0 -w -DSAFETY -DMEMLIM=4000 -o pan pan.c # most searches take less time than to optimize them
    ./pan -m1000000 >log
}

# check MODEL [-DNAME=VALUE...]: there is no error in any state.
check() {
    local model=$1
    search "$@"
    shift
    grep -q 'errors: 0' log && ! grep -q 'max search depth too small\|Search not completed' log || {
        echo "$model $*: FAILED" >&2
        head -20 log >&2
        exit 1
    }
    echo "$model $*: $(grep -o '[0-9]* states, stored' log)"
}

# refuse MODEL -DMUTANT=N: a protocol that is wrong has one.
refuse() {
    search "$@"
    grep -q 'errors: 1' log || {
        echo "$*: no error found" >&2
        exit 1
    }
    echo "$*: refused"
}

check protocol -DGRAPH=1
check protocol -DGRAPH=2
check protocol -DGRAPH=3
check blocks -DBLOCKS=4
check blocks -DBLOCKS=5
check blocks -DBLOCKS=7
check mask
check mask -DSTOPS=1
for mutant in 1 2 3 4 5; do refuse mask -DMUTANT=$mutant; done
