#!/usr/bin/env bash
# tools/fuzz.sh [--quick] [-runs=N | -max_total_time=SECONDS] [target ...]
# Builds the libFuzzer targets of tests/fuzz with clang, AddressSanitizer and UBSan in build-fuzz and
# runs each on its committed corpus, from the same seed every time. New inputs go to build-fuzz/corpus, a crash to build-fuzz/.
# --quick compiles without optimization: a third of the time, for code of half the speed. It is for some thousand runs.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=-runs=20000 level=-O1
targets=()
for a in "$@"; do
    case "$a" in --quick) level=-O0 ;; -*) limit=$a ;; *) targets+=("$a") ;; esac
done
clang=$(command -v clang-14 || command -v clang)
CC=$clang cmake -S . -B build-fuzz -G Ninja -DQN_FUZZ=ON \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="$level -g1" >build-fuzz.log 2>&1 ||
    { cat build-fuzz.log; exit 1; }
rm -f build-fuzz.log
if [ ${#targets[@]} -eq 0 ]; then
    for f in tests/fuzz/fuzz_*.c; do
        f=${f##*/fuzz_}
        targets+=("${f%.c}")
    done
fi
cmake --build build-fuzz -j "$(nproc)" --target "${targets[@]/#/fuzz_}" >build-fuzz/log 2>&1 ||
    { tail -40 build-fuzz/log; exit 1; }

run() { # target
    local t=$1 words=()
    mkdir -p "build-fuzz/corpus/$t" "tests/fuzz/corpus/$t"
    case "$t" in config | safetensors) words=(-dict=tests/fuzz/model.dict) ;; esac
    if "build-fuzz/tests/fuzz_$t" "$limit" -seed=1 "${words[@]}" -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/$t-" "build-fuzz/corpus/$t" "tests/fuzz/corpus/$t" \
        >"build-fuzz/$t.log" 2>&1; then
        echo "fuzz $t: ok, $(grep -o 'number_of_executed_units: *[0-9]*' "build-fuzz/$t.log" |
            grep -o '[0-9]*') inputs"
    else
        echo "fuzz $t: FAILED"
        tail -30 "build-fuzz/$t.log"
        return 1
    fi
}
export -f run
export limit
# One has one thread. The exit status is not 0 when one has failed.
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I {} bash -c 'run {}'
