# bench.sh - the contract of `quern bench latency`.
. tests/cli/common.bash

mkdir "$T/dummy" && cp $TINY/config.json "$T/dummy"
run 0 bench latency --model "$T/dummy" --load-format dummy --batch-size 1,4 --input-len 16 \
    --output-len 24 --format json
check 'len(o) == 1 and [r["batch_size"] for r in o[0]["results"]] == [1, 4]'
check 'all(0 < r["ms_per_token"]["median"] <= r["ms_per_token"]["p99"] <= r["ms_per_token"]["max"] or r["ms_per_token"]["max"] > 0 for r in o[0]["results"])'
check 'all(r["tokens_per_s"] > 0 and r["ttft_ms"] > 0 and r["bytes_per_token"] > 0 for r in o[0]["results"])'
check 'all(r["read_floor_tb_s"] > 0 and r["percent_of_floor"] >= 0 for r in o[0]["results"])'
check 'all({"model","compile","verify","kernels","memory","weights","tokenizer","total"} <= set(r["startup_s"]) for r in o[0]["results"])'
check 'o[0]["results"][0]["bytes_per_token"] > 2 * o[0]["results"][1]["bytes_per_token"]'
check 'o[0]["startup_s"]["total"] > 0 and o[0]["input_len"] == 16 and o[0]["output_len"] == 24'
# Experts: a step's bytes follow from those that were read.
mkdir "$T/moe" && cp $GOLDEN/qwen3-moe/config.json "$T/moe"
for format in dummy dummy-zipf; do
    run 0 bench latency --model "$T/moe" --load-format $format --backend cpu --batch-size 1,6 --input-len 16 \
        --output-len 48 --format json
    check 'o[0]["results"][0]["experts_read_per_layer"] == 3'
    check '3 < o[0]["results"][1]["experts_read_per_layer"] < 8'
    check 'o[0]["results"][1]["bytes_per_step"] > o[0]["results"][0]["bytes_per_step"]'
done
run 0 bench latency $TINY --input-len 8 --output-len 8
out_says "percent"
# Steps of several runs are counted together; of one run there are as many as fit in its window.
run 0 bench latency $TINY --input-len 4 --output-len 9 --num-iters 3 --batch-size 1 --format json
check 'o[0]["num_iters"] == 3 and o[0]["results"][0]["steps"] == 24'
refused 2 "num-iters" bench latency $TINY --num-iters 0
refused 2 "num-iters" bench latency $TINY --num-iters 10001
# A cache of four blocks, which one request needs: two share it at first, but there is no step of four.
# Where the host slept through a run it cannot tell one token's time from another's: again, then.
crowded() {
    local words=$1 i
    shift
    for i in 1 2 3 4 5; do
        run 0 bench latency $TINY --input-len 16 --output-len 200 --threads 1 \
            --kv-cache-memory-bytes $((4 * 393216)) "$@"
        grep -qF -- "$words" "$T/out" && return
    done
    die "bench latency $*: not once '$words'"
}
crowded '"steps":0' --batch-size 4,2 --format json
check 'o[0]["results"][1]["steps"] > 0'
check 'all((r["steps"] == 0) == (r[k] is None) for r in o[0]["results"] for k in ("ms_per_token", "tokens_per_s", "percent_of_floor"))'
crowded "never all in flight" --batch-size 4
refused 2 "less than the largest" bench latency $TINY --batch-size 4 --max-num-seqs 2
refused 1 "max_model_len" bench latency $TINY --input-len 1000 --output-len 1000 -q
exit 0
