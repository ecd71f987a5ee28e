# tokenize.sh - text to ids and back.
. tests/cli/common.bash

python3 - "$T" <<'PY'
import json, random, sys
r = random.Random(5)
texts = ["", "Hello", "Once upon a time", " two  spaces ", "tab\tline\nend\r\n", "a\u0000b", "\u00e9\u4e16\u754c\U0001f600"]
for _ in range(200):
    texts.append("".join(chr(r.choice([r.randint(32, 126), r.randint(0xa0, 0x2ff), r.randint(0x4e00, 0x4eff), 0x1f600]))
                         for _ in range(r.randint(1, 60))))
import unicodedata
texts = [unicodedata.normalize("NFC", t) for t in texts]
with open(sys.argv[1] + "/in", "w") as f:
    for t in texts: f.write(json.dumps({"text": t}) + "\n")
PY
run 0 tokenize --tokenizer $TINY --jsonl <"$T/in"
cp "$T/out" "$T/ids"
check 'len(o) == 207 and all(list(x) == ["ids"] for x in o) and o[0]["ids"] == [] and len(o[1]["ids"]) > 0'
run 0 detokenize --tokenizer $TINY --jsonl <"$T/ids"
python3 - "$T/in" "$T/out" <<'PY' || die "the texts did not come back"
import json, sys
a, b = ([json.loads(l) for l in open(f, encoding="utf-8")] for f in sys.argv[1:])
sys.exit(a != b)
PY

run 0 tokenize $TINY --prompt "Hello there" --format json
check 'len(o[0]["ids"]) > 1'
run 0 tokenize $TINY --prompt "Hello there"
run 0 detokenize $TINY --prompt-ids "$(cat "$T/out")"
[ "$(cat "$T/out")" = "Hello there" ] || die "plain round trip"
printf '{"text": "<|im_end|>x"}\n' >"$T/in"
run 0 tokenize $TINY --jsonl --no-special-tokens <"$T/in"
cp "$T/out" "$T/ids"
run 0 detokenize $TINY --jsonl <"$T/ids"
out_says "<|im_end|>x"
run 0 detokenize $TINY --jsonl --skip-special-tokens <"$T/ids"
check 'o[0]["text"] == "x"'

bad() { code=0; printf '%s\n' "$2" | "$Q" "$1" $TINY --jsonl >"$T/out" 2>"$T/err" || code=$?
        [ $code -eq 1 ] || die "$1 took $2"; err_says "$3"; }
bad tokenize '{"text": 3}' "line 1"
bad tokenize '[1]' "line 1"
bad tokenize '{"text": "a"' "line 1"
bad detokenize '{"ids": 3}' "line 1"
bad detokenize '{"ids": ["a"]}' "element 0"
bad detokenize '{"ids": [99999999]}' "99999999"
bad detokenize '{"ids": [1e99]}' "element 0"
refused 1 "no/such" tokenize --tokenizer no/such --jsonl
refused 2 "which tokenizer" tokenize --jsonl
refused 2 "give one of" tokenize $TINY
exit 0
