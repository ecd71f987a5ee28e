# compiler.sh - compile, inspect, graph, verify.
. tests/cli/common.bash

run 0 compile $TINY -o "$T/a.qnp" --max-model-len 512
[ ! -s "$T/out" ] || die "compile wrote to stdout"
run 0 compile $TINY -o "$T/b.qnp" --max-model-len 512
cmp "$T/a.qnp" "$T/b.qnp" || die "the same input gave other bytes"
run 0 verify "$T/a.qnp"
out_says "right"
run 0 verify --model $TINY
out_says "8 kernel graphs proved to mean what the model does"
for m in deepseek-v2-lite deepseek-v2-yarn mixtral qwen2-moe qwen3-moe-sparse; do
    run 0 verify --model $GOLDEN/$m --load-format dummy --max-model-len 300
    out_says "8 kernel graphs proved to mean what the model does"
done
run 0 verify "$T/a.qnp" --model $TINY --format json
check 'o[0]["ok"] is True and o[0]["error"] is None'

run 0 generate $TINY --prompt Once -n 8 --temperature 0 --format json --max-model-len 512 -q
cp "$T/out" "$T/direct"
run 0 generate $TINY --program "$T/a.qnp" --prompt Once -n 8 --temperature 0 --format json -q
python3 - "$T/out" "$T/direct" <<'PY' || die "a program from a file gives something else"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
sys.exit(a["ids"] != b["ids"] or a["logprobs"] != b["logprobs"])
PY
refused 1 "another model" generate $GOLDEN/qwen3 --program "$T/a.qnp" --prompt-ids 1 -q
refused 1 "max_model_len" generate $TINY --program "$T/a.qnp" -p x --max-model-len 256 -q
refused 1 "nofile" verify "$T/nofile"
refused 1 "config.json" verify $TINY/config.json
head -c 3000 "$T/a.qnp" >"$T/short"
refused 1 "short" verify "$T/short"
# Every damaged table is noticed: sixteen places, spread over the file.
python3 - "$T/a.qnp" "$T" <<'PY'
import sys
b = open(sys.argv[1], "rb").read()
for i in range(16):
    d = bytearray(b)
    at = 64 + (len(b) // 2 - 64) * i // 16 & ~3
    d[at:at + 4] = b"\xfe\xff\xff\x7f"
    open(f"{sys.argv[2]}/bad{i}", "wb").write(d)
PY
noticed=0
for i in $(seq 0 15); do
    code=0
    "$Q" verify "$T/bad$i" >"$T/out" 2>"$T/err" || code=$?
    [ $code -le 1 ] || die "verify of a damaged file: exit code $code"
    noticed=$((noticed + code))
done
[ $noticed -ge 12 ] || die "only $noticed of 16 damaged files were noticed"

run 0 inspect $TINY --format json
check '{"model","target","variants","program","memory_plan","pages","compile_time"} <= set(o[0])'
check 'all({"rows","operators","tasks","events","stages","normalization"} <= set(v) for v in o[0]["variants"])'
check '[s["stage"] for s in o[0]["variants"][0]["stages"]][:5] == ["decompose","memory_plan","depend","event_fuse","normalize"]'
check 'o[0]["variants"][0]["normalization"]["overhead_percent"] >= 0'
check 'o[0]["memory_plan"]["total_bytes"] > o[0]["memory_plan"]["weight_bytes"] > 10**7'
check 'o[0]["compile_time"]["total_s"] > 0 and o[0]["pages"]["kv"]["count"] > 0'
check 'sum(v["tasks"] for v in o[0]["variants"]) == o[0]["program"]["tasks"]'
run 0 inspect $TINY
out_says "normalization adds"
run 0 inspect $TINY --why
out_says "takes least of those that are possible"
out_says "not possible: "
run 0 inspect $TINY --format json
check 'all(sum(w["taken"] for w in c["ways"]) == 1 for v in o[0]["variants"] for c in v["choices"])'
check 'all(w["why_not"] is None for v in o[0]["variants"] for c in v["choices"] for w in c["ways"] if w["taken"])'
check 'all(v["why"] and v["forms"] == [] for v in o[0]["variants"])'
run 0 inspect $TINY --program "$T/a.qnp" --format json
check 'o[0]["max_model_len"] == 512 and o[0]["compile_time"] is None'

for stage in kernel decompose depend normalize linearize place program; do
    run 0 graph $TINY --stage $stage
    [ "$(wc -l <"$T/out")" -gt 20 ] || die "graph --stage $stage is empty"
done
run 0 graph $TINY --stage decompose --rows 4
refused 1 "there are kernel" graph $TINY --stage nonsense -q
refused 1 "no variant has 3" graph $TINY --rows 3 -q

run 0 env --format json
check 'o[0]["version"] and o[0]["cpu"]["cores"] >= 1 and o[0]["cpu"]["isa"] and o[0]["backends"]["cpu"] == "available"'
run 0 env
out_says "cpu isa"
exit 0
