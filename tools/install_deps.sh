#!/usr/bin/env bash
# Installs the Debian packages that building and testing need, where they are missing.
set -euo pipefail
packages=(build-essential cmake ninja-build python3 libjansson-dev libpcre2-dev libutf8proc-dev
          libedit-dev libevent-dev libcmocka-dev)
if [ "${1:-}" = "--all" ]; then # what CI's checks need on top
    packages+=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev cppcheck spin gcovr
               python3-venv nginx-light haproxy openssl chromium)
fi
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
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
