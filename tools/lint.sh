#!/usr/bin/env bash
# tools/lint.sh [--quick] BUILD [format|tidy|cppcheck|layers|functions|symbols|kernels ...]: the checks that read code
# instead of running it. Without names: all of them. --quick: the analyzer reads the files that the
# last commits have changed, and follows a tenth of a function's paths.
set -uo pipefail
cd "$(dirname "$0")/.."
nodes=225000 # the analyzer's own limit, a function
since=
if [ "${1:-}" = --quick ]; then
    nodes=20000
    since=HEAD~20 # about a day; a shorter history: all files
    shift
fi
build=${1:?usage: tools/lint.sh [--quick] BUILD [check ...]}
shift
checks=("$@")
[ ${#checks[@]} -gt 0 ] || checks=(format tidy cppcheck layers functions symbols kernels)
tool() { command -v "$1-14" || command -v "$1"; }
mapfile -t sources < <(git ls-files 'src/*.c' 'examples/*.c')
mapfile -t formatted < <(git ls-files '*.c' '*.h' '*.cuh')
analyzed=("${sources[@]}")
if [ -n "$since" ] && git rev-parse -q --verify "$since" >/dev/null; then
    mapfile -t analyzed < <(git diff --name-only --diff-filter=d "$since" -- 'src/*.c' 'examples/*.c')
fi
failed=0

format() { "$(tool clang-format)" --dry-run -Werror "${formatted[@]}"; }

tidy() {
    # GCC's flags that clang does not know are dropped. A file a process: beside others it is analyzed differently.
    local found
    found=$(printf '%s\n' "${analyzed[@]}" | grep -v -e '_amx\.c$' |
        xargs -r -P "$(nproc)" -n 1 "$(tool clang-tidy)" -p "$build" --quiet \
            --extra-arg=-Wno-unknown-warning-option \
            --extra-arg={-Xclang,-analyzer-config} --extra-arg={-Xclang,max-nodes=$nodes} 2>/dev/null | grep -E ': (error|warning):')
    [ -z "$found" ] || { echo "$found"; return 1; }
}

cppcheck_all() {
    cppcheck -q -j "$(nproc)" --std=c11 --enable=warning,performance --inline-suppr \
        --suppressions-list=tools/cppcheck.txt --error-exitcode=1 \
        -Isrc -Iinclude -D_GNU_SOURCE "${sources[@]}"
}

layers() { python3 tools/check_layers.py; }

functions() { python3 tools/check_functions.py; }

# What the shared library shows and what the static one leaves to be linked: qn_ names only.
symbols() {
    local bad=0 lib
    for lib in "$build"/libquern.so "$build"/libquern.a; do
        [ -e "$lib" ] || { echo "symbols: $lib is missing"; return 1; }
        local names
        if [[ $lib == *.so ]]; then
            names=$(nm -D --defined-only "$lib" | awk '{print $3}')
        else
            names=$(nm -g --defined-only "$lib" 2>/dev/null | awk 'NF==3 {print $3}')
        fi
        if names=$(grep -v '^qn_' <<<"$names" | grep .); then
            echo "$lib shows symbols without qn_:"; head -5 <<<"$names"; bad=1
        fi
    done
    return $bad
}

# What NVRTC makes of the GPU's kernels: registers, spills, stack. Where there is none, 77.
kernels() {
    "$build"/check_kernels --model qwen3-8b --arch sm_90a
    local status=$?
    [ $status = 0 ] || [ $status = 77 ]
}
kernels_done() {
    wait "$kernels_job"
    local status=$?
    cat "$build/lint-kernels"
    return $status
}

# NVRTC has one thread: the others go on beside it.
if [[ " ${checks[*]} " == *" kernels "* ]]; then
    kernels >"$build/lint-kernels" 2>&1 &
    kernels_job=$!
fi
for c in "${checks[@]}"; do
    case "$c" in
    format | tidy | layers | functions | symbols) run=$c ;;
    kernels) run=kernels_done ;;
    cppcheck) run=cppcheck_all ;;
    *) echo "checks: format tidy cppcheck layers functions symbols kernels, not '$c'" >&2; exit 2 ;;
    esac
    if $run; then echo "lint $c: ok"; else echo "lint $c: FAILED"; failed=1; fi
done
exit $failed
