# common.bash - for the tests of the command line; each is run as `bash test.sh QUERN` in the
# repository's root. A failed check prints what it saw and ends the test.
set -uo pipefail
Q=$(realpath "$1")
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
TINY=models/tiny
GOLDEN=tests/golden/models
export CUDA_VISIBLE_DEVICES=-1 # --backend auto is the CPU, wherever this runs

die() {
    echo "FAILED: $*"
    for f in out err; do [ -s "$T/$f" ] && echo "--- $f" && head -c 2000 "$T/$f"; done
    exit 1
}

# run CODE ARGS...: runs quern; stdout and stderr land in $T/out and $T/err.
run() {
    local want=$1 code=0
    shift
    "$Q" "$@" >"$T/out" 2>"$T/err" || code=$?
    [ $code -eq "$want" ] || die "quern $*: exit code $code, want $want"
}

# What the last run's stderr or stdout must say (a fixed string).
err_says() { grep -qF -- "$1" "$T/err" || die "stderr does not say: $1"; }
out_says() { grep -qF -- "$1" "$T/out" || die "stdout does not say: $1"; }

# refused CODE WORDS ARGS...: fails with one line on stderr that has WORDS, and nothing on stdout.
refused() {
    local code=$1 words=$2
    shift 2
    run "$code" "$@"
    err_says "$words"
    [ "$(wc -l <"$T/err")" -eq 1 ] || die "quern $*: want one line of error"
    [ ! -s "$T/out" ] || die "quern $*: wrote to stdout"
}

# check 'python expression over o (the JSON objects on stdout, one per line)'
check() {
    python3 - "$T/out" "$@" <<'PY' || die "check: $1"
import json, math, sys
o = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
sys.exit(0 if eval(sys.argv[2]) else 1)
PY
}

# The scripts of a page are JavaScript, as far as a machine with node can tell.
page_runs() {
    command -v node >/dev/null || return 0
    python3 -c 'import re, sys; sys.stdout.write("\n".join(re.findall(r"<script>(.*?)</script>", open(sys.argv[1], encoding="utf-8").read(), re.S)))' "$1" >"$T/page.js"
    [ -s "$T/page.js" ] || die "$1: no script"
    node --check "$T/page.js" >"$T/err" 2>&1 || die "$1: the script"
}
