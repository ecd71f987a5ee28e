#!/usr/bin/env bash
# tools/gpu_bundle.sh BUILD FOLDER [CACHE [ARCH]]: what a GPU machine without a compiler needs of a finished
# build, small: quern, cuda_trace, check_kernels, tests/engine_test_cuda_{device,group}, tests/engine_test_structured,
# tests/grammar_probe, the library that these need, and the commit. There, from the repository's root:
# tests/gpu/run --build FOLDER, with FOLDER/lib in LD_LIBRARY_PATH; bench/ab.py NAME=FOLDER/quern ...; bench/serve_figures.py FOLDER/quern ...
# CACHE: compiles the kernels of tests/gpu/configs for ARCH (sm_90a) into that folder, half a minute each
# on a core; there QN_CACHE_DIR=CACHE finds them. Several builds may share it.
set -euo pipefail
cd "$(dirname "$0")/.."
usage="usage: tools/gpu_bundle.sh BUILD FOLDER [CACHE [ARCH]]"
build=${1:?$usage} folder=${2:?$usage} cache=${3:-} arch=${4:-sm_90a}
tests=(engine_test_cuda_device engine_test_cuda_group engine_test_structured grammar_probe)
cmake --build "$build" --target quern cuda_trace check_kernels "${tests[@]}"
mkdir -p "$folder/tests" "$folder/lib"
for program in quern cuda_trace check_kernels "${tests[@]/#/tests/}"; do
    strip -o "$folder/$program" "$build/$program"
done
ldd "$build/tests/engine_test_cuda_device" | awk '/cmocka/ {print $3}' | xargs -r cp -Lt "$folder/lib"
git describe --always --dirty >"$folder/COMMIT"
du -sh "$folder"
if [ -n "$cache" ]; then
    mkdir -p "$cache"
    printf '%s\n' tests/gpu/configs/* |
        QN_CACHE_DIR=$(realpath "$cache") xargs -P "$(nproc)" -I{} \
            "$folder/check_kernels" --fill-cache --arch "$arch" {}
    du -sh "$cache"
fi
