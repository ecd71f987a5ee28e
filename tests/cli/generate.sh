# generate.sh - the contract of `quern generate`, field by field; what is refused.
. tests/cli/common.bash
G="$GOLDEN/qwen3"

run 0 generate --model $G --prompt-ids 1,2,3 --max-tokens 24 --temperature 0 --ignore-eos --format json
check 'len(o) == 1 and list(o[0]) == ["prompt_ids","ids","text","logprobs","finish_reason","stop_reason","stats"]'
check 'o[0]["prompt_ids"] == [1,2,3] and len(o[0]["ids"]) == 24 == len(o[0]["logprobs"])'
check 'o[0]["text"] is None and o[0]["finish_reason"] == "length"'
check 'all(isinstance(x, float) and -30 < x <= 0 for x in o[0]["logprobs"])'
check 'all(isinstance(x, int) and 0 <= x < 400 for x in o[0]["ids"])'
check 'o[0]["stats"]["prompt_tokens"] == 3 and o[0]["stats"]["output_tokens"] == 24'
check 'o[0]["stats"]["ttft_ms"] > 0 and o[0]["stats"]["total_s"] > 0'
err_says "memory"
err_says "tokens/s"
err_says "cpu"
cp "$T/out" "$T/first"
bits() { python3 -c 'import json,sys
for f in sys.argv[1:]:
    for l in open(f):
        o=json.loads(l); print(o["prompt_ids"], o["ids"], o["logprobs"], o["text"], o["finish_reason"])' "$@"; }
for threads in 1 2 3; do
    run 0 generate --model $G --prompt-ids 1,2,3 --max-tokens 24 --temperature 0 --ignore-eos \
        --format json --threads $threads -q
    [ ! -s "$T/err" ] || die "--quiet is not quiet"
    cmp <(bits "$T/first") <(bits "$T/out") || die "other bits with $threads threads"
done
run 0 generate --model $G --prompt-ids 1,2,3 --max-tokens 24 --temperature 0 --ignore-eos \
    --format json -q --max-num-batched-tokens 1
cmp <(bits "$T/first") <(bits "$T/out") || die "other bits token by token"

# many as one batch: in input order, each as it is alone
for i in 1 2 3 4 5 6 7 8 9 10; do
    printf '{"prompt_ids": [%s]}\n\n' "$(seq -s, $i $((i * 3)))"
done >"$T/prompts"
run 0 generate --model $G --prompts-file "$T/prompts" --max-tokens 12 --temperature 0 --format json
check 'len(o) == 10 and [x["prompt_ids"][0] for x in o] == list(range(1, 11))'
cp "$T/out" "$T/batch"
for i in 1 5 10; do
    run 0 generate --model $G --prompt-ids "$(seq -s, $i $((i * 3)))" --max-tokens 12 \
        --temperature 0 --format json
    cmp <(bits "$T/out") <(sed -n ${i}p "$T/batch" >"$T/one"; bits "$T/one") || die "prompt $i differs"
done
run 0 generate --model $G --prompts-file - --max-tokens 12 --temperature 0 --format json <"$T/prompts"
cmp <(bits "$T/out") <(bits "$T/batch") || die "stdin differs from a file"

# text
run 0 generate $TINY --prompt "Once upon a time" --max-tokens 20 --temperature 0 --format json
check 'o[0]["text"] and o[0]["finish_reason"] == "length"'
text=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["text"])' "$T/out")
run 0 generate $TINY --prompt "Once upon a time" --max-tokens 20 --temperature 0
[ "$(cat "$T/out")" = "$text" ] || die "streamed text differs"
printf 'Once upon a time' >"$T/prompt"
run 0 generate $TINY --prompt-file "$T/prompt" --max-tokens 20 --temperature 0 -q
[ "$(cat "$T/out")" = "$text" ] || die "--prompt-file differs"
run 0 generate $TINY --prompt-file - --max-tokens 20 --temperature 0 -q <"$T/prompt"
[ "$(cat "$T/out")" = "$text" ] || die "--prompt-file - differs"
printf '{"prompt": "Once upon a time"}\n{"prompt": "The"}\n' >"$T/prompts"
run 0 generate $TINY --prompts-file "$T/prompts" --max-tokens 20 --temperature 0 -q
[ "$(head -1 "$T/out")" = "$text" ] || die "--prompts-file differs"
run 0 generate $TINY --prompt "Once upon a time" --max-tokens 20 --temperature 0 --stop "${text:9:6}" --stop nowhere
[ "$(cat "$T/out")" = "${text:0:9}" ] || die "--stop"
run 0 generate $TINY --prompt "Once upon a time" --max-tokens 20 --temperature 0 --stop "${text:9:6}" --format json
check 'o[0]["finish_reason"] == "stop"'

# sampling: seeds repeat, the model's defaults sample, penalties and limits act
for s in 1 1 2; do
    run 0 generate $TINY --prompt Once --max-tokens 30 --temperature 1 --seed $s --format json -q
    bits "$T/out" >>"$T/seeds"
done
[ "$(sed -n 1p "$T/seeds")" = "$(sed -n 2p "$T/seeds")" ] || die "a seed does not repeat"
[ "$(sed -n 1p "$T/seeds")" != "$(sed -n 3p "$T/seeds")" ] || die "seeds do not differ"
run 0 generate $TINY --prompt Once --max-tokens 30 --temperature 0 --format json -q
bits "$T/out" >"$T/greedy"
for flag in "--temperature 1 --top-k 1" "--temperature 1 --top-p 0.00001" "--temperature 1 --min-p 1"; do
    # shellcheck disable=SC2086
    run 0 generate $TINY --prompt Once --max-tokens 30 $flag --format json -q
    cmp <(bits "$T/out") "$T/greedy" || die "$flag is not greedy"
done
for flag in --repetition-penalty=1.8 --presence-penalty=2 --frequency-penalty=2; do
    run 0 generate $TINY --prompt Once --max-tokens 30 --temperature 0 $flag --format json -q
    cmp -s <(bits "$T/out") "$T/greedy" && die "$flag does nothing"
done
id=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["ids"][3])' "$T/out")
run 0 generate $TINY --prompt Once --max-tokens 30 --temperature 0 --frequency-penalty 2 --stop-token-ids "$id" --format json -q
check 'o[0]["finish_reason"] == "stop" and len(o[0]["ids"]) <= 4'
run 0 generate $TINY --prompt Once --max-tokens 0 --max-model-len 20 --temperature 0 --ignore-eos --format json -q
check 'len(o[0]["prompt_ids"]) + len(o[0]["ids"]) == 20'

# dummy weights: no tokenizer needed, any directory with config.json
mkdir "$T/dummy" && cp $G/config.json "$T/dummy"
run 0 generate --model "$T/dummy" --load-format dummy --prompt-ids 1,2 --max-tokens 3 --format json
check 'o[0]["text"] is None and len(o[0]["ids"]) <= 3'

# one clear line each
refused 1 "no/such" generate --model no/such --prompt x
refused 1 "model" generate --model "$T/dummy" --prompt-ids 1
refused 1 "cuda" generate $TINY --prompt x --backend cuda
refused 1 "isa" generate $TINY --prompt x --isa mmx
q() { refused 1 "$1" generate "${@:2}" -q; }
q "token 1 is 5000" $TINY --prompt-ids 1,5000
q "empty" $TINY --prompt-ids ""
q "empty" $TINY --prompt ""
q "max_model_len" $TINY --prompt-ids "$(seq -s, 1 600)" --max-model-len 512
q "no tokenizer" $G --prompt hello
q "no tokenizer" $G --prompt-ids 1 --stop x
q "no prompts" $TINY --prompts-file /dev/null
q "nofile" $TINY --prompt-file "$T/nofile"
q "64 positions takes 0.4 MB of KV cache, have room for 0.0; raise kv_cache_memory_bytes" \
    $TINY --prompt x --kv-cache-memory-bytes 1k
# 100 positions are two blocks of 64.
q "100 positions takes 0.8 MB of KV cache, have room for 0.7; lower max_model_len or raise kv_cache_memory_bytes" \
    $TINY --prompt x --kv-cache-memory-bytes 700k --max-model-len 100
q "weights take 10.7 MB, gpu_memory_utilization allows" $TINY --prompt x --gpu-memory-utilization 0.0000001
q "raise it, or lower kv_cache_memory_bytes, max_model_len" $TINY --prompt x --kv-cache-memory-bytes 1000G --gpu-memory-utilization 0.01
exit 0
