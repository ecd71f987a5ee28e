# trace.sh - `--trace FILE`: read back by a parser of this file's own.
. tests/cli/common.bash

cat >"$T/perfetto.py" <<'PY'
import sys

def varint(b, i):
    v = shift = 0
    while True:
        c = b[i]
        i += 1
        v |= (c & 127) << shift
        shift += 7
        if c < 128:
            return v, i

def message(b):
    i, out = 0, []
    while i < len(b):
        key, i = varint(b, i)
        if key & 7 == 0:
            v, i = varint(b, i)
        elif key & 7 == 1:
            v, i = int.from_bytes(b[i:i + 8], "little"), i + 8
        else:
            assert key & 7 == 2, "wire type %d" % (key & 7)
            n, i = varint(b, i)
            v, i = b[i:i + n], i + n
            assert len(v) == n, "cut off"
        out.append((key >> 3, v))
    return out

names, tracks, slices, flows, ends, rows = {}, {}, [], [], [], []
for field, packet in message(open(sys.argv[1], "rb").read()):
    assert field == 1
    fields = message(packet)
    time = dict(fields).get(8)
    for number, value in fields:
        if number == 12:
            for kind, entry in message(value):
                if kind == 2:
                    names[dict(message(entry))[1]] = dict(message(entry))[2].decode()
        if number == 60:
            d = dict(message(value))
            tracks[d[1]] = d.get(2, b"").decode()
        if number == 11:
            event = message(value)
            d = dict(event)
            flows += [v for k, v in event if k == 47]
            ends += [v for k, v in event if k == 48]
            if d[9] == 1:
                slices.append((tracks[d[11]], names[d[10]] if 10 in d else d[23].decode(), time))
            if d[9] == 4 and tracks[d[11]] == "token rows":
                rows.append(d[30])
PY
cat "$T/perfetto.py" - >"$T/check.py" <<'PY'
tasks = [s for s in slices if s[0].endswith(": tasks")]
assert {s[1] for s in tasks} >= {"embed", "qkv L0", "attention L5", "lm_head", "sample"}
assert len([s for s in tasks if s[1] == "sample"]) >= 6
assert sorted(flows) == sorted(ends) and len(set(flows)) == len(flows) > 300
assert rows[0] == 3 and rows[1:] == [1] * 5, rows
assert len([s for s in slices if s[0] == "iterations"]) == 6
PY
run 0 generate $TINY --prompt-ids 1,2,3 --max-tokens 6 --ignore-eos --temperature 0 --threads 2 \
    --format json --trace "$T/trace"
check 'len(o) == 1 and len(o[0]["ids"]) == 6'
err_says "trace in"
python3 "$T/check.py" "$T/trace" || die "the trace"
ids=$(cat "$T/out")
run 0 generate $TINY --prompt-ids 1,2,3 --max-tokens 6 --ignore-eos --temperature 0 --threads 2 \
    --format json
python3 -c 'import json,sys; a,b=json.loads(sys.argv[1]),json.load(open(sys.argv[2])); assert a["ids"]==b["ids"] and a["logprobs"]==b["logprobs"]' "$ids" "$T/out" || die "a trace changes the output"
run 0 bench latency $TINY --input-len 4 --output-len 6 --trace "$T/bench"
python3 "$T/perfetto.py" "$T/bench" || die "the trace of bench latency"
# Where nothing can be written, nothing is generated.
refused 1 "--trace: /no/such/folder/t: No such file" generate $TINY --prompt-ids 1 --max-tokens 1 --trace /no/such/folder/t
refused 1 "--trace: $T: Is a directory" bench latency $TINY --trace "$T"
refused 1 "no/such" generate -m no/such --prompt-ids 1 --trace "$T/none"
[ ! -e "$T/none" ] || die "a refused command left a file"
exit 0
