# prompts_file.sh - lines with fields of their own, bad lines, several texts for a prompt, what is
# there when a batch is stopped.
. tests/cli/common.bash
one() { "$Q" generate $TINY -q --prompt "Once upon a time" --temperature 0 --format json "$@"; }
ids() { python3 -c 'import json, sys
for line in sys.stdin:
    o = json.loads(line)
    print(o.get("ids") or [x["ids"] for x in o.get("outputs", [])])'; }

# Every field does what the option of its name does, for its line only.
cat >"$T/in" <<'J'
{"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}
{"prompt": "Once upon a time", "stop": "lived", "temperature": 0, "include_stop_str_in_output": true}
{"prompt": "Once upon a time", "temperature": 1, "seed": 7, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
{"prompt": "Once upon a time", "temperature": 1, "seed": -1}
{"prompt": "Once upon a time", "temperature": 1, "seed": "18446744073709551615"}
{"prompt": "Once upon a time", "temperature": 1, "seed" : 9223372036854775808, "custom_id": 3}
{"prompt": "Once upon a time", "temperature": 0, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "presence_penalty": 1}
{"prompt": "Once upon a time", "temperature": 0, "logit_bias": {"300": 100}, "min_tokens": 3}
{"prompt": "Once upon a time", "temperature": 0, "stop": null, "ignore_eos": true}
J
run 0 generate $TINY -q --prompts-file "$T/in" --max-tokens 12 --temperature 0.5 --format json
ids <"$T/out" >"$T/have"
{
    one --max-tokens 2
    one --max-tokens 12 --stop lived --include-stop-str-in-output
    one --max-tokens 12 --temperature 1 --seed 7 --top-k 20 --top-p 0.9 --min-p 0.01
    one --max-tokens 12 --temperature 1 --seed=-1
    one --max-tokens 12 --temperature 1 --seed 18446744073709551615
    one --max-tokens 12 --temperature 1 --seed 9223372036854775808
    one --max-tokens 12 --frequency-penalty 1.5 --repetition-penalty 1.2 --presence-penalty 1
    one --max-tokens 12 --logit-bias '{"300": 100}' --min-tokens 3
    one --max-tokens 12 --ignore-eos
} | ids >"$T/want"
cmp "$T/have" "$T/want" || die "a line's fields are not those of the options"
[ "$(sed -n 4p "$T/have")" = "$(sed -n 5p "$T/have")" ] || die "-1 and 2^64 - 1 are one seed"
check 'o[7]["ids"] == [300] * 12'

# A bad line has an error in its place; the others run; the status is 1.
cat >"$T/in" <<'J'
{"prompt": "Once", "custom_id": "first"}

{"prompt": "Once", "max_token": 3, "custom_id": {"any": ["thing"]}}
{"prompt": "Once", "top_p": 0}
{"prompt": "Once"
["Once"]
{"prompt": "Once", "prompt_ids": [1]}
{"prompt_ids": [1, 99999]}
{"prompt": 3}
{"prompt": ""}
{"prompt": "Once", "stop": ["a", ""]}
{"prompt": "Once", "n": 0}
{"prompt": "Once", "logprobs": 101}
{"prompt": "Once", "custom_id": "last"}
J
run 1 generate $TINY -q --prompts-file "$T/in" --max-tokens 3 --temperature 0 --format json
[ "$(wc -l <"$T/err")" -eq 1 ] || die "want one line of error"
err_says "11 of 13 prompts failed; line 3: unknown field 'max_token'"
check 'len(o) == 13 and [i for i, x in enumerate(o) if "error" in x] == list(range(1, 12))'
check 'o[0]["custom_id"] == "first" and o[12]["custom_id"] == "last" and o[0]["ids"] == o[12]["ids"]'
check 'o[1]["custom_id"] == {"any": ["thing"]}'
check '[x["error"]["line"] for x in o[1:12]] == list(range(3, 14))'
for words in "did you mean 'max_tokens'" "top_p: want a number above 0 and up to 1, have 0" column "want an object" \
    "either prompt" 99999 empty "string 2 is empty" "n: want a whole number from 1 to 128" "logprobs: at most 100"; do
    out_says "$words"
done
run 1 generate $TINY -q --prompts-file "$T/in" --max-tokens 3 --temperature 0
[ "$(grep -c '^--- prompt' "$T/out")" -eq 13 ] || die "want a line after each text"
out_says "--- prompt 1: length"
out_says "--- prompt 3: error"
err_says "11 of 13 prompts failed; line 3: unknown field 'max_token'"
printf '\xef\xbb\xbf{"prompt": "Once"}\n' >"$T/in"
run 0 generate $TINY -q --prompts-file "$T/in" --max-tokens 3 --format json

# Several texts for a prompt: seeds one apart.
run 0 generate $TINY -q --prompt Once --n 3 --seed 5 --temperature 1 --max-tokens 6 --format json
check 'list(o[0]) == ["prompt_ids", "outputs"] and [x["index"] for x in o[0]["outputs"]] == [0, 1, 2]'
check 'list(o[0]["outputs"][0]) == ["index", "ids", "text", "logprobs", "finish_reason", "stop_reason", "stats"]'
cp "$T/out" "$T/many"
for i in 0 1 2; do
    run 0 generate $TINY -q --prompt Once --seed $((5 + i)) --temperature 1 --max-tokens 6 --format json
    python3 -c 'import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:3])
sys.exit(a["outputs"][int(sys.argv[3])]["ids"] != b["ids"])' "$T/many" "$T/out" $i || die "text $i"
done

# Lists of likely tokens, scores of the prompt; what ended a text.
run 0 generate $TINY -q --prompt "Once upon a time" --temperature 0 --max-tokens 4 --logprobs 3 --prompt-logprobs 2 --format json
check 'all(len(t) == 3 and t[0] == {"id": i, "logprob": p} for t, i, p in zip(o[0]["top_logprobs"], o[0]["ids"], o[0]["logprobs"]))'
check 'len(o[0]["prompt_logprobs"]) == len(o[0]["prompt_ids"]) == len(o[0]["prompt_top_logprobs"])'
check 'o[0]["prompt_logprobs"][0] is None and all(-40 < x <= 0 for x in o[0]["prompt_logprobs"][1:])'
check 'o[0]["prompt_top_logprobs"][0] is None and all(len(t) == 2 for t in o[0]["prompt_top_logprobs"][1:])'
run 0 generate $TINY -q --prompt "Once upon a time" --temperature 0 --stop lived --format json
check 'o[0]["stop_reason"] == "lived" and o[0]["finish_reason"] == "stop"'
id=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["ids"][1])' "$T/out")
run 0 generate $TINY -q --prompt "Once upon a time" --temperature 0 --stop-token-ids "$id" --format json
check "o[0]['stop_reason'] == $id and o[0]['finish_reason'] == 'stop'"
run 0 generate $TINY --prompt Once --max-tokens 2 --stop '<|im_end|>' --stop fine
err_says "stop '<|im_end|>' can never match"
[ "$(grep -c 'never match' "$T/err")" -eq 1 ] || die "a stop text that can match"
refused 2 "--logprobs: shown with --format json" generate $TINY -p x --logprobs 2 -q
refused 2 "--no-special-tokens" generate $TINY --prompt-ids 1 --no-special-tokens -q
refused 2 "from -2^63 to 2^64 - 1" generate $TINY -p x --seed 18446744073709551616 -q
refused 2 "--top-p: want a number above 0" generate $TINY -p x --top-p 0 -q
refused 2 "--logit-bias" generate $TINY -p x --logit-bias 3 -q
refused 1 "stop: string 1 is not UTF-8" generate $TINY -p x --stop $'\xbf' -q --format json
for flag in "--top-p 0.000001" "--repetition-penalty 0.01" "--top-p 1e-20"; do
    # shellcheck disable=SC2086
    run 0 generate $TINY -q -p Once --max-tokens 2 --temperature 1 $flag
done

# The experts of each position.
MOE=tests/golden/models/deepseek-v2-lite # a dense layer, then two of nine experts
run 0 generate --model $MOE -q --prompt-ids 1,2,3 --max-tokens 4 --ignore-eos --enable-return-routed-experts --format json
check 'len(o[0]["routed_experts"]) == 3 + 4 - 1'
check 'all(p[0] == [] and len(p) == 3 for p in o[0]["routed_experts"])'
check 'all(len(set(l)) == 3 and l == sorted(l) and l[-1] < 9 for p in o[0]["routed_experts"] for l in p[1:])'
run 0 generate --model $MOE -q --prompt-ids 1,2,3 --max-tokens 4 --format json
check '"routed_experts" not in o[0]'
refused 2 "--enable-return-routed-experts: shown with --format json" generate --model $MOE --prompt-ids 1 -q --enable-return-routed-experts
refused 1 "models/tiny has no experts" generate $TINY --prompt Once -q --enable-return-routed-experts --format json

# A model whose logits are no numbers: an error with a message, never entries that are missing.
cp -r $TINY "$T/poisoned" && chmod -R u+w "$T/poisoned"
python3 - "$T/poisoned/model.safetensors" <<'P'
import json, struct, sys
raw = bytearray(open(sys.argv[1], "rb").read())
n = struct.unpack("<Q", raw[:8])[0]
at = 8 + n + json.loads(raw[8:8 + n])["model.embed_tokens.weight"]["data_offsets"][0] + 2 * 76805
raw[at:at + 2] = struct.pack("<H", 0x7fc0)
open(sys.argv[1], "wb").write(raw)
P
refused 1 "logits of output token 0 are not numbers" generate "$T/poisoned" -q -p Once --format json
printf '{"prompt": "Once"}\n{"prompt": "Once", "prompt_logprobs": 0}\n' >"$T/in"
run 1 generate "$T/poisoned" -q --prompts-file "$T/in" --format json
check 'len(o) == 2 and all("not numbers" in x["error"]["message"] for x in o)'

# Prompts that begin alike are computed once, blocks run out, the bound on a step changes nothing.
for i in $(seq 6); do
    echo "{\"prompt_ids\": [$(seq -s, 100 299), $i]}"
done >"$T/in"
run 0 generate $TINY --prompts-file "$T/in" --max-tokens 100 --ignore-eos --temperature 0 --format json \
    --no-enable-prefix-caching
ids <"$T/out" >"$T/want"
check 'all(x["stats"]["cached_tokens"] == 0 and x["stats"]["preemptions"] == 0 for x in o)'
run 0 generate $TINY --prompts-file "$T/in" --max-tokens 100 --ignore-eos --temperature 0 --format json \
    --kv-cache-memory-bytes $((7 * 393216)) --max-model-len 320 --max-inter-token-latency-ms 1
ids <"$T/out" >"$T/have"
cmp "$T/want" "$T/have" || die "shared blocks change the output"
check 'sum(x["stats"]["cached_tokens"] for x in o) == 5 * 192'
grep -q "960 of 1206 prompt tokens cached" "$T/err" || die "the cached tokens are not reported"
run 2 generate $TINY --prompt x --max-inter-token-latency-ms -1

# A batch that is stopped leaves whole lines.
for i in $(seq 400); do echo "{\"prompt\": \"Once $i\"}"; done >"$T/in"
for signal in KILL TERM; do
    : >"$T/out" # the lines that are waited for below are not those of the run before
    "$Q" generate $TINY -q --threads 1 --max-num-seqs 2 --prompts-file "$T/in" --max-tokens 150 --ignore-eos \
        --format json >"$T/out" 2>"$T/err" &
    while kill -0 $! 2>/dev/null && [ "$(wc -l <"$T/out")" -lt 3 ]; do sleep 0.05; done
    kill -$signal $! 2>/dev/null
    wait $! 2>/dev/null
    [ -z "$(tail -c 1 "$T/out")" ] || die "$signal: the last line is torn"
    check '3 <= len(o) < 400 and all(len(x["ids"]) == 150 for x in o)'
done
exit 0
