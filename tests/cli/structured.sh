# structured.sh - generate --json-schema, --regex, --grammar, --choice, and structured_outputs of lines.
. tests/cli/common.bash
cat >"$T/schema.json" <<'J'
{"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}},
 "required": ["kind", "age"], "additionalProperties": false}
J
echo 'root ::= "yes" | "no"' >"$T/grammar"
run 0 generate $TINY -q --prompt Once --temperature 1 --seed 3 --json-schema "$T/schema.json"
python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
assert o["kind"] in ("cat", "dog") and 0 <= o["age"] <= 30 and len(o) == 2' "$T/out" || die "not of the schema"
# A file that can be read once only.
run 0 generate $TINY -q --prompt Once --json-schema /dev/stdin <"$T/schema.json"
run 0 generate $TINY -q --prompt Once --regex 'v\d\.\d'
grep -qx 'v[0-9]\.[0-9]' "$T/out" || die "not of the regex"
run 0 generate $TINY -q --prompt Once --grammar "$T/grammar"
grep -qxE 'yes|no' "$T/out" || die "not of the grammar"
run 0 generate $TINY -q --prompt Once --choice red --choice 'light blue'
grep -qxE 'red|light blue' "$T/out" || die "not of the choice"

# Lines have their own, which go before the options.
cat >"$T/in" <<'J'
{"prompt": "Once", "structured_outputs": {"json": {"type": "boolean"}}}
{"prompt": "Once", "structured_outputs": {"json": "{\"const\": 7}"}}
{"prompt": "Once", "structured_outputs": {"choice": ["a", "b"]}}
{"prompt": "Once", "structured_outputs": {"grammar": "root ::= \"k\""}, "n": 2}
{"prompt": "Once"}
{"prompt": "Once", "structured_outputs": {"regex": "x("}}
{"prompt": "Once", "structured_outputs": {"regex": "x", "choice": ["x"]}}
J
run 1 generate $TINY -q --prompts-file "$T/in" --regex 'z' --format json
check 'o[0]["text"] in ("true", "false") and o[1]["text"] == "7" and o[2]["text"] in ("a", "b")'
check '[x["text"] for x in o[3]["outputs"]] == ["k", "k"] and o[4]["text"] == "z"'
check '"regex: byte 2" in o[5]["error"]["message"] and "one of json, regex" in o[6]["error"]["message"]'

# Wrong ones end before the model is read.
run 2 generate no-such-directory --prompt Once --regex 'a{'
grep -q 'regex: byte 2' "$T/err" || die "no place in the message"
echo '{"properties": {"a": {"multipleOf": 2}}}' >"$T/schema.json"
run 2 generate no-such-directory --prompt Once --json-schema "$T/schema.json"
grep -q '#/properties/a/multipleOf' "$T/err" || die "no path in the message"
run 2 generate $TINY --prompt Once --regex a --choice b
run 2 generate $TINY --prompt Once --regex a --ignore-eos
run 1 generate $TINY --prompt Once --grammar "$T/none"
