#!/usr/bin/env bash
# tools/check_new_operator.sh [PATCH]: adds an operator that quern does not have to a copy of the tree, as
# CONTRIBUTING.md's "Adding an operator" says, and holds the recipe to what it promises. PATCH is
# tools/new_operator/operator.patch, LAYERNORM_LINEAR. In the copy:
#
#   builds what the device tests need, warnings as errors
#   holds both evaluators of the access maps to each other, in every form of every operator
#   compiles and proves programs of the operator alone, runs them on the CPU's kernels and on the emulated
#   GPU, and holds the results to double arithmetic
#
# The last line is "files touched: N". Exit status 1 if a step fails or N is more than 5; 77, to skip it,
# where the tree is no git checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
most=5
patch=$(realpath "${1:-tools/new_operator/operator.patch}")
fail() { echo "check_new_operator: $*" >&2; exit 1; }

git rev-parse --is-inside-work-tree >/dev/null || exit 77
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null -T - -c | tar -x -C "$copy"
# No repository around the copy: git would look for the patch's files in that.
export GIT_CEILING_DIRECTORIES=${copy%/*}
git -C "$copy" apply --verbose "$patch"
touched=$(git -C "$copy" apply --numstat "$patch" | wc -l)
operators=$(git -C "$copy" apply --numstat "$patch" | sed -n 's|.*tests/device/ops/\(.*\)\.c$|\1|p')
[ -n "$operators" ] || fail "$patch has no tests/device/ops/<operator>.c"

# The same objects at every path, so that ccache knows them again.
launcher=()
if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR=$copy CCACHE_NOHASHDIR=1
fi
generator=()
! command -v ninja >/dev/null || generator=(-G Ninja)
cmake -S "$copy" -B "$copy/build" "${generator[@]}" "${launcher[@]}" -DQN_WERROR=ON \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1 >"$copy/log"
cmake --build "$copy/build" -j "$(nproc)" --target device_test_ops device_test_maps >"$copy/log" 2>&1 ||
    { tail -40 "$copy/log" >&2; fail "it does not build"; }

cd "$copy"
build/tests/device_test_maps || fail "the access maps"
emulator=$copy/build/tests/emulator
for operator in $operators; do
    LD_LIBRARY_PATH=$emulator QN_NVRTC=$emulator/libnvrtc.so QN_CACHE_DIR=$copy/cache QN_EMU_ARCH=90 \
        QN_DEADLINE_MS=30000 QN_TEST="*/$operator*" build/tests/device_test_ops 2>&1 | tee "$copy/log" ||
        fail "$operator is not what its meaning says"
    passed=$(sed -n 's/^\[ *OK \] //p' "$copy/log")
    grep -q '\.cpu$' <<<"$passed" || fail "$operator ran on no CPU kernel"
    grep -qv '\.cpu$' <<<"$passed" || fail "$operator ran on no GPU"
done
echo "files touched: $touched"
[ "$touched" -le $most ]
