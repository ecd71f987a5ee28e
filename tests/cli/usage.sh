# usage.sh - help, misspellings, exit codes, how values are spelled.
. tests/cli/common.bash

run 0 --help
commands=$(sed -n 's/^  \([a-z]*\( latency\| serve\)\?\)  .*/\1/p' "$T/out")
[ "$(wc -l <<<"$commands")" -ge 13 ] || die "commands: $commands"
while read -r c; do
    # shellcheck disable=SC2086
    run 0 $c --help
    out_says "usage: quern $c"
    out_says "Examples:"
    out_says "  quern $c"
    [ ! -s "$T/err" ] || die "help on stderr"
done <<<"$commands"
run 0 generate --help
for word in --model --max-tokens --temperature --stop --prompts-file 'DIR' 'auto|cuda|cpu' '[auto]'; do
    out_says "$word"
done
awk 'length > 110' "$T/out" | grep . && die "help is wider than 110 columns"
run 0 version
out_says "quern 0."
run 0 --version
run 0 version --format json
check 'o[0]["version"].startswith("0.")'

refused 2 "which command" 
refused 2 "did you mean 'generate'?" genrate
refused 2 "unknown command 'server'" server
refused 2 "bench latency" bench
refused 2 "bench latency" bench throughput
refused 2 "did you mean --max-tokens?" generate --max-token 3
refused 2 "did you mean --temperature?" generate --temprature=1
refused 2 "did you mean --top-k?" generate --topk 1
refused 2 "unknown option --xyzzy" generate --xyzzy
refused 2 "unknown option -Z" generate -Z
refused 2 "--jsonl is not an option of" generate --jsonl
refused 2 "wants a value" generate --model
refused 2 "takes no value" generate --ignore-eos=1
refused 2 "takes no argument" env something
refused 2 "is 'a' already" generate a b
refused 2 "want a whole number" generate $TINY -p x --max-tokens many
refused 2 "want a whole number" generate $TINY -p x --max-tokens -1
refused 2 "want a whole number" generate $TINY -p x --max-tokens 1.5
refused 2 "want a number" generate $TINY -p x --temperature warm
refused 2 "want a number" generate $TINY -p x --temperature nan
refused 2 "from 0 to 100" generate $TINY -p x --temperature -1 -q
refused 2 "--top-p" generate $TINY -p x --top-p 2 -q
refused 2 "one of auto|cuda|cpu" generate $TINY -p x --backend tpu
refused 2 "which model" generate --prompt x
refused 2 "give one of" generate $TINY
refused 2 "give one of" generate $TINY --prompt x --prompt-ids 1
refused 2 "whole numbers" generate $TINY --prompt-ids 1,,2
refused 2 "whole numbers" generate $TINY --prompt-ids 1,-2
refused 2 "too large" generate $TINY -p x --threads 5g
refused 2 "share" generate $TINY -p x --gpu-memory-utilization 1.5
refused 2 "which shell" completion
refused 2 "one of bash|zsh|fish" completion tcsh
refused 2 "where to" compile $TINY
refused 2 "batch-size" bench latency $TINY --batch-size 0
refused 2 "what?" verify

# - and _, = and space, letters, suffixes, --
run 0 generate --model=$TINY --prompt_ids 1,2 --max_tokens=2 --max_model_len 0.5k --format=json -q
check 'len(o[0]["ids"]) <= 2'
run 0 generate $TINY -p Once -n2 --max-model-len 1K --format json -q
run 0 generate -q --format json -n 2 -p Once -- $TINY
run 1 generate $TINY -p Once -n 2 --max-model-len 32k -q
err_says "max_model_len"

# the result's end is reached, or it is an error
code=0
"$Q" version >/dev/full 2>"$T/err" || code=$?
[ $code -eq 1 ] || die "a full disk went unnoticed"
err_says "stdout"
