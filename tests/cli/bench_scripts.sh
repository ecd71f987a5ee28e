# bench_scripts.sh - the scripts of bench/: what README.md shows is what is on record, and a comparison
# records what could not be measured and goes on.
. tests/cli/common.bash
export PYTHONDONTWRITEBYTECODE=1 OUT=$T/results

python3 bench/table.py --check || die "the table in README.md is old"
python3 bench/plot.py --check || die "docs/pictures/decode.svg is old"
python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' docs/pictures/decode.svg ||
    die "not XML"

# compare MODELS ARGS...: a trial on the CPU; the record ends up in $T/out
mkdir -p "$T/configs/small" "$T/configs/broken" "$T/bin"
cp $TINY/config.json "$T/configs/small"
echo '{"model_type": "nobody"}' >"$T/configs/broken/config.json"
compare() {
    local want=$1 code=0
    shift
    PATH=$T/bin:$PATH python3 bench/compare.py --quern "$Q" --configs "$T/configs" --backend cpu --input-len 4 \
        --output-len 8 --repeat 1 --name one "$@" >"$T/said" 2>"$T/err" || code=$?
    [ $code -eq "$want" ] || die "bench/compare.py $*: exit code $code, want $want"
    tr -d '\n' <"$OUT/one.json" >"$T/out"
}

# A llama-bench of an older release, which refuses what it does not know.
cat >"$T/bin/llama-bench" <<'SH'
#!/bin/sh
case "$*" in *-fa*) echo "error: invalid parameter for argument: -fa" >&2 && exit 1 ;; esac
echo 'ggml: a line before the result'
echo '[{"n_prompt": 0, "n_gen": 8, "avg_ts": 90.0, "samples_ts": [125.0]}]'
SH
chmod +x "$T/bin/llama-bench"
touch "$T/x.gguf"
compare 1 --models small,broken --skip transformers --gguf "small=$T/x.gguf"
systems='o[0]["models"][m]["systems"]'
check "[${systems//\[m\]/[\"small\"]}[s][\"status\"] for s in (\"quern\", \"transformers\", \"llama.cpp\")] == [\"ok\", \"skipped\", \"ok\"]"
check "[${systems//\[m\]/[\"broken\"]}[s][\"status\"] for s in (\"quern\", \"transformers\", \"llama.cpp\")] == [\"failed\", \"skipped\", \"skipped\"]"
check '"nobody" in o[0]["models"]["broken"]["systems"]["quern"]["reason"]'
check 'o[0]["models"]["small"]["systems"]["llama.cpp"]["ms_per_token"] == 8'
check 'abs(o[0]["models"]["small"]["floor"]["ms"] * 1e9 * o[0]["models"]["small"]["floor"]["read_ceiling_tb_s"] / o[0]["models"]["small"]["floor"]["bytes_per_step"] - 1) < 1e-6'
check 'all("percent_of_floor" in s for s in o[0]["models"]["small"]["systems"].values() if s["status"] == "ok")'

# A GGUF file of other weights is other work; a step without an end is ended, its children too.
echo '[{"n_gen": 8, "avg_ts": 90.0, "model_size": 1}]' >"$T/answer"
printf '#!/bin/sh\ncat %s\n' "$T/answer" >"$T/bin/llama-bench"
compare 1 --models small --skip transformers --gguf "small=$T/x.gguf"
check '"other work" in o[0]["models"]["small"]["systems"]["llama.cpp"]["reason"]'
printf '#!/bin/sh\nsleep 1000 &\necho $! >%s\nwait\n' "$T/child" >"$T/bin/llama-bench"
compare 1 --models small --skip transformers --gguf "small=$T/x.gguf" --timeout-llama 1
check '"no end after 1 s" in o[0]["models"]["small"]["systems"]["llama.cpp"]["reason"]'
state=$(cut -d' ' -f3 "/proc/$(cat "$T/child")/stat" 2>/dev/null)
[[ $state == "" || $state == Z ]] || die "the child of a step that was ended still runs"
echo 'nothing' >"$T/answer"
printf '#!/bin/sh\ncat %s\n' "$T/answer" >"$T/bin/llama-bench"
compare 1 --models small --skip transformers --gguf "small=$T/x.gguf"
check '"no JSON" in o[0]["models"]["small"]["systems"]["llama.cpp"]["reason"]'
compare 0 --models small --budget 0
check '{s["status"] for s in o[0]["models"]["small"]["systems"].values()} == {"skipped"}'

# ab: builds in turns, all rounds on record; one that fails is said and does not end the others.
printf '#!/bin/sh\necho "quern: not today" >&2\nexit 1\n' >"$T/bin/broken"
chmod +x "$T/bin/broken"
ab() {
    local want=$1 code=0
    shift
    python3 bench/ab.py --configs "$T/configs" --backend cpu --models small --input-len 4 --output-len 8 "$@" \
        >"$T/said" 2>"$T/err" || code=$?
    [ $code -eq "$want" ] || die "bench/ab.py $*: exit code $code, want $want"
}
ab 0 "one=$Q" "two=$Q,QN_DEADLINE_MS=9" --batch-size 1,2 --rounds 3 --record ab
[ "$(grep -c '^small ' "$T/said")" -eq 4 ] || die "ab: want two builds and two batch sizes"
tr -d '\n' <"$OUT/ab.json" >"$T/out"
check 'len(o[0]["rounds"]) == 3 and all([x["batch_size"] for x in r["small"][b]] == [1, 2] for r in o[0]["rounds"] for b in ("one", "two"))'
check 'o[0]["builds"]["two"]["settings"] == {"QN_DEADLINE_MS": "9"}'
ab 1 "one=$T/bin/broken" "two=$Q" --rounds 1
grep -q "one .*not today" "$T/said" && grep -q "two .*100.00%" "$T/said" || die "ab: a build that fails"
ab 2 "one=$T/none"
ab 2 "one=$Q" "one=$Q"

# serve_figures: a server over a made-up tokenizer; one that does not come up is said, with its words.
figures() {
    local want=$1 program=$2 code=0
    shift 2
    python3 bench/serve_figures.py "$program" "$T/configs/small" --backend cpu --max-num-seqs 2 --max-model-len 64 --input-len 4 \
        --output-len 8 --record figures "$@" >"$T/said" 2>"$T/err" || code=$?
    [ $code -eq "$want" ] || die "bench/serve_figures.py $*: exit code $code, want $want"
    tr -d '\n' <"$OUT/figures.json" >"$T/out"
}
figures 0 "$Q" --only streams,guided --streams 1,2 --rounds 2 --guided 2 --guided-rounds 1
check '[o[0]["parts"]["streams"][n]["tokens"] for n in ("1", "2")] == [16, 32]'
check 'all(o[0]["parts"]["guided"][k]["ratio"] > 0 for k in ("free", "one regex", "one schema", "own schemas"))'
figures 1 "$Q" --only streams --streams 1 --output-len 70
grep -q "^streams: FAILED: .* 400 " "$T/said" || die "figures: a request that is refused"
figures 1 "$T/bin/broken"
grep -q "not today" "$T/said" || die "figures: a server that does not come up"

for wrong in "--models none" "--skip python" "--gguf small" "--output-len 1"; do
    python3 bench/compare.py --configs "$T/configs" $wrong >"$T/out" 2>"$T/err" && die "taken: $wrong"
    [ $? -eq 2 ] || die "$wrong: want exit code 2"
done
exit 0
