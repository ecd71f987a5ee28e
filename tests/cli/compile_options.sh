# compile_options.sh - whatever the compiler is told about tiles, events, launches and cuts, tokens
# and log-probabilities are the same to the last bit. (kv-block is left out: softmax runs over blocks.)
. tests/cli/common.bash

bits() { # MODEL OPTIONS
    run 0 generate --model "$1" --prompt-ids "$(seq -s, 1 70)" --max-tokens 12 --ignore-eos \
        --temperature 0 --compile-options "$2" --threads 3 --format json
    python3 -c 'import json, sys; r = json.load(sys.stdin); print(r["ids"], r["logprobs"])' <"$T/out"
}

for model in $TINY $GOLDEN/qwen2 $GOLDEN/llama2-mha; do
    want=$(bits $model "")
    [ ${#want} -gt 50 ] || die "nothing from $model"
    for o in launch=aot launch=jit launch=paper events=coarse event-fusion=off tasks-per-worker=5 \
        qkv=split qkv=split,launch=jit,tasks-per-worker=3 \
        tile.linear=3x2,tile.gated_mlp=2x5,tile.qkv=4x1; do
        [ "$(bits $model $o)" = "$want" ] || die "$model: $o gives other bits"
    done
done
want=$(bits $GOLDEN/qwen3-moe "")
for o in moe=static moe=static,launch=jit tasks-per-worker=3 events=coarse \
    tile.expert_gate_up=0x7,tile.expert_down=3x2,tile.router=4x3; do
    [ "$(bits $GOLDEN/qwen3-moe $o)" = "$want" ] || die "qwen3-moe: $o gives other bits"
done
for o in moe=jit moe=grouped bogus=1 launch=never tile.nothing=1x1 tile.qkv=1 carry-bytes=100 linear=parts workers=alternate workers=2; do
    refused 1 "${o%%=*}" generate --model $TINY --prompt-ids 1 --compile-options $o
done
