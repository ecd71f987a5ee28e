#!/usr/bin/env bash
# tools/variants.sh [--quick] asan tsan stress coverage: builds and tests quern in other ways.
# Each variant has its own build folder, build-<variant>, with only what its tests need in it.
#   asan      AddressSanitizer and UBSan: all tests but the emulated GPU's, and the mutations and the
#             statistics of sampling, which are minutes of arithmetic and little memory.
#             --quick leaves out what takes longest, half of the damaged models, two thirds of the damaged
#             programs, and fake stacks, and does not watch the vector kernels
#   tsan      ThreadSanitizer: what runs threads, and the GPU's kernels on the emulated one. --quick
#             has one test of these, with what the engine does with a single row, and the yields of
#             stress; runtime/test_bits runs each program with one format of weights; of the engine's tests
#             it leaves out those that are minutes of polling threads
#   stress    random yields at every primitive: what runs threads
#   coverage  the lines and branches of src/ that the tests reach, without those that take minutes when
#             the counters are there, which all threads share; build-coverage/coverage.txt has the files
set -euo pipefail
cd "$(dirname "$0")/.."
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1

# The targets of the chosen tests: tests/runtime/test_x.c is the test runtime/test_x and the target runtime_test_x.
programs() { # folder, ctest arguments
    # shellcheck disable=SC2086
    comm -12 <(ctest --test-dir "$1" -N $2 | sed -n 's/^ *Test *#[0-9]*: //p' | tr / _ | sort) \
        <(cmake --build "$1" --target help | sed 's/:.*//' | sort)
}

run() { # name, cmake arguments, other targets, ctest arguments, tests at a time
    echo "== $1"
    # shellcheck disable=SC2086
    cmake -S . -B "build-$1" -G Ninja -DQN_WERROR=ON -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" $2 >/dev/null
    # shellcheck disable=SC2046,SC2086
    cmake --build "build-$1" -j "$(nproc)" --target $3 $(programs "build-$1" "$4") >"build-$1/log" 2>&1 ||
        { tail -40 "build-$1/log"; exit 1; }
    # shellcheck disable=SC2086
    ctest --test-dir "build-$1" --output-on-failure -j "${5:-$(($(nproc) + 1))}" $4 # some wait
}

slow="lint/|runtime/spin|tools/|task/test_mutations|kernels_cpu/test_sampling|server/test_(agents|clients|schema|routers|page|proxies|soak)"
yields="" vectors="" deep=ON
few="short_jit_sm80|short_(step|whole)_sm80" # nothing new before sm_90; 26 multiprocessors are too many
if [ "${1:-}" = --quick ]; then
    shift
    export ASAN_OPTIONS=detect_stack_use_after_return=0 # a sixth of what grammar/test_grammar takes
    deep=OFF
    slow="$slow|hostile/test_(tokenizers|nomem)|(engine|inspect)/test_(engine|shapes|trace|view|golden_plan|scheduling|kgraph_prove|op_expr)|model/test_family_golden|search/|grammar/(generate|oracle)|server/test_(faults|lifecycle|tools)|real/|cli/(bench|profile|compile_options|compiler|directories|explain|generate|graph|prompts_file|tours)|chat/test_answer|block/generated|kernels_cpu/test_kernels|runtime/test_(bits|protocol|stall)|task/test_(gang|stages)|emulator/|device/[^t]"
    few="engine/test_(engine|scheduling|edges|answer|structured|sampling_params)|short_(work_tensor|masks|sm|jit|step|whole_sm|pairs|transport|polls|experts_sm80)|inspect/test_trace"
    yields="-DQN_STRESS=ON"
    # Half of what ASan's tests take, and of its build; kernels_cpu/test_isa has guard pages behind the operands.
    vectors="-DQN_VECTOR_FLAGS=-fno-sanitize=address,undefined"
fi

for variant in "$@"; do
    case "$variant" in
    asan)
        # A thousand fibers with a fake stack each: minutes a test. ThreadSanitizer sees those.
        run asan "-DQN_SANITIZE=address,undefined -DQN_DEEP=$deep $vectors" "quern block_prove_texts grammar_probe device_test_tables device_test_maps" "-E $slow|emulator/|device/[^t]"
        ;;
    tsan)
        # Compiling and proving is one thread's work.
        run tsan "-DQN_SANITIZE=thread -DQN_DEEP=$deep $yields" emu_nvrtc \
            "-R ^(runtime|engine|inspect)/test_|^emulator/short -E (engine|inspect)/test_(shapes|plan|golden_plan|view|kgraph_prove|op_expr)|$few" "$(nproc)"
        ;;
    stress)
        run stress "-DQN_STRESS=ON" "" \
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
