#!/usr/bin/env bash
# tools/gpu_bundle.sh BUILD FOLDER: what a GPU machine without a compiler needs of a finished build, small:
# quern, cuda_trace, check_kernels, tests/engine_test_cuda_device, the library that this needs, and the
# commit. There, from the repository's root: tests/gpu/run --build FOLDER, with FOLDER/lib in
# LD_LIBRARY_PATH; bench/ab.py NAME=FOLDER/quern ...
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/gpu_bundle.sh BUILD FOLDER} folder=${2:?usage: tools/gpu_bundle.sh BUILD FOLDER}
cmake --build "$build" --target quern cuda_trace check_kernels engine_test_cuda_device
mkdir -p "$folder/tests" "$folder/lib"
for program in quern cuda_trace check_kernels tests/engine_test_cuda_device; do
    strip -o "$folder/$program" "$build/$program"
done
ldd "$build/tests/engine_test_cuda_device" | awk '/cmocka/ {print $3}' | xargs -r cp -Lt "$folder/lib"
git describe --always --dirty >"$folder/COMMIT"
du -sh "$folder"
