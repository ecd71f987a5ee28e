#!/usr/bin/env bash
# Installs the Debian packages that building and testing need, where they are missing.
# --checks: also what CI's checks need. --all: also the Python packages that tests want, in the build folder (BUILD,
# or build); a test that finds its own missing fetches them.
set -euo pipefail
cd "$(dirname "$0")/.."
python_packages() { # what cannot be had is no failure: the tests say so
    local build=${BUILD:-build}
    python3 -B tests/server/venv.py "$build/clients" || true
    python3 -B tests/grammar/packages.py "$build/grammar" || true
    python3 -B tools/real_model.py "$build/real" >/dev/null || true
}
packages=(build-essential cmake ninja-build python3 libjansson-dev libpcre2-dev libutf8proc-dev
          libedit-dev libevent-dev libcmocka-dev)
if [ "${1:-}" = "--all" ] || [ "${1:-}" = "--checks" ]; then
    packages+=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev cppcheck spin gcovr
               python3-venv nginx-light haproxy openssl chromium)
fi
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    [ "${1:-}" != "--all" ] || python_packages
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "quern needs these packages (Debian's names): ${missing[*]}" >&2
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "as root: apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq >/dev/null
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
[ "${1:-}" != "--all" ] || python_packages
