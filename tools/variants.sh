#!/usr/bin/env bash
# Builds and tests quern in other ways: tools/variants.sh asan tsan stress
# Each variant has its own build folder, build-<variant>, and runs the tests that make sense in it.
set -euo pipefail
cd "$(dirname "$0")/.."
run() { # name, cmake arguments, ctest arguments
    echo "== $1"
    # shellcheck disable=SC2086
    cmake -S . -B "build-$1" -G Ninja $2 >/dev/null
    cmake --build "build-$1" -j "$(nproc)" >"build-$1/log" 2>&1 || { tail -40 "build-$1/log"; exit 1; }
    # shellcheck disable=SC2086
    ctest --test-dir "build-$1" --output-on-failure -j "$(nproc)" $3
}
for variant in "$@"; do
    case "$variant" in
    asan) run asan "-DQN_SANITIZE=address,undefined" "-E lint/|runtime/spin" ;;
    tsan) TSAN_OPTIONS="halt_on_error=1" run tsan "-DQN_SANITIZE=thread" "-R runtime/|engine/" ;;
    stress) run stress "-DQN_STRESS=ON" "-R runtime/|engine/" ;;
    *) echo "variants: asan tsan stress, not '$variant'" >&2; exit 2 ;;
    esac
done
