#!/usr/bin/env bash
# tools/variants.sh [--quick] asan tsan stress coverage: builds and tests quern in other ways.
# Each variant has its own build folder, build-<variant>, with only what its tests need in it.
#   asan      AddressSanitizer and UBSan: all tests but the emulated GPU's, and the mutations and the
#             statistics of sampling, which are minutes of arithmetic and little memory.
#             --quick leaves out what takes longest
#   tsan      ThreadSanitizer: what runs threads, and the GPU's kernels on the emulated one. --quick
#             has one test of these, with what the engine does with a single row, and the yields of
#             stress
#   stress    random yields at every primitive: what runs threads
#   coverage  the lines and branches of src/ that the tests reach, without those that take minutes when
#             the counters are there, which all threads share; build-coverage/coverage.txt has the files
set -euo pipefail
cd "$(dirname "$0")/.."
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1

# The test programs of some layers, as targets: tests/runtime/test_x.c is runtime_test_x.
programs() {
    local layer f
    for layer in "$@"; do
        for f in tests/"$layer"/test_*.c; do
            f=${f##*/}
            echo "${layer}_${f%.c}"
        done
    done
}

run() { # name, cmake arguments, targets, ctest arguments
    echo "== $1"
    # shellcheck disable=SC2086
    cmake -S . -B "build-$1" -G Ninja -DQN_WERROR=ON -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" $2 >/dev/null
    # shellcheck disable=SC2086
    cmake --build "build-$1" -j "$(nproc)" --target $3 >"build-$1/log" 2>&1 ||
        { tail -40 "build-$1/log"; exit 1; }
    # shellcheck disable=SC2086
    ctest --test-dir "build-$1" --output-on-failure -j "$(($(nproc) + 1))" $4 # some wait
}

slow="lint/|runtime/spin|tools/|task/test_mutations|kernels_cpu/test_sampling|server/test_(agents|clients|schema|routers|page|proxies|soak)"
yields=""
few="short_jit_sm80|short_(step|whole)_sm80" # nothing new before sm_90; 26 multiprocessors are too many
if [ "${1:-}" = --quick ]; then
    shift
    slow="$slow|hostile/test_(tokenizers|nomem)|(engine|inspect)/test_(engine|shapes|trace|view|golden_plan|scheduling)|search/|grammar/(generate|oracle)|server/test_(faults|lifecycle)|real/|cli/(bench|profile|compile_options|graph)|emulator/|device/[^t]"
    few="short_(masks|sm|jit|step|whole_sm|pairs|transport|polls)|inspect/test_trace"
    yields="-DQN_STRESS=ON"
fi

for variant in "$@"; do
    case "$variant" in
    asan)
        # A thousand fibers with a fake stack each: minutes a test. ThreadSanitizer sees those.
        run asan "-DQN_SANITIZE=address,undefined" all "-E $slow|emulator/|device/[^t]"
        ;;
    tsan)
        # Compiling and proving is one thread's work.
        run tsan "-DQN_SANITIZE=thread $yields" "$(programs runtime engine inspect | tr '\n' ' ') emu_nvrtc" \
            "-R ^(runtime|engine|inspect)/test_|^emulator/short -E (engine|inspect)/test_(shapes|plan|golden_plan|view|kgraph_prove|op_expr)|$few"
        ;;
    stress)
        run stress "-DQN_STRESS=ON" "$(programs runtime engine inspect | tr '\n' ' ')" \
            "-R ^(runtime|engine|inspect)/test_"
        ;;
    coverage)
        command -v gcovr >/dev/null || { echo "gcovr is missing" >&2; exit 1; }
        find build-coverage -name '*.gcda' -delete 2>/dev/null || true
        run coverage "-DQN_COVERAGE=ON" all \
            "-E $slow|hostile/|emulator/|device/[^t]|(engine|inspect)/test_(engine|trace)|cli/(bench|generate|profile|install)"
        gcovr -r . -f src/ -s build-coverage -o build-coverage/coverage.txt >build-coverage/summary
        cat build-coverage/summary
        ;;
    *) echo "variants: asan tsan stress coverage, not '$variant'" >&2; exit 2 ;;
    esac
done
