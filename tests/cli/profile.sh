# profile.sh - `quern profile`: the account adds up, as text, JSON and a page.
. tests/cli/common.bash

run 0 profile $TINY --threads 2 --output-len 24 --format json --html "$T/page.html" --trace "$T/t"
check 'abs(sum(p["us"] for p in o[0]["operators"]) + o[0]["wait_us"] + o[0]["hand_over_us"] + o[0]["boundary_us"] + o[0]["wake_us"] - o[0]["iteration_us"]) < 0.02 * o[0]["iteration_us"]'
check 'len(o[0]["losses"]) == 5 and o[0]["losses"][0]["us"] >= o[0]["losses"][4]["us"] > 0'
check 'abs(o[0]["bytes"] / o[0]["floor_us"] * 1e-3 - o[0]["read_floor_gb_s"]) < 0.01 * o[0]["read_floor_gb_s"]'
check 'o[0]["critical_path"]["n_tasks"] == len(o[0]["critical_path"]["tasks"]) > 20'
check 'o[0]["trace"]["dropped"] == 0 and o[0]["trace"]["ns_per_record"] < 1000'
[ -s "$T/t" ] || die "no trace"
page_runs "$T/page.html"
python3 - "$T/page.html" <<'PY' || die "the page"
import json, re, sys
page = open(sys.argv[1], encoding="utf-8").read()
assert "@@" not in page and "http" not in page
data = json.loads(re.search(r"const data = (\{.*?\});\nconst A", page, re.S).group(1))
runs = data["runs"]
assert len(runs) % 5 == 0 and len(runs) > 500
for i in range(0, len(runs), 5):
    assert str(runs[i]) in data["tasks"] and runs[i + 1] < data["account"]["n_workers"]
    it = data["iters"][runs[i + 2]]
    assert it[2] <= runs[i + 3] <= runs[i + 4] <= it[3] + 1e-3
PY
mkdir "$T/dummy" && cp $TINY/config.json "$T/dummy"
run 0 profile "$T/dummy" --load-format dummy --output-len 8 --format json

run 0 profile $GOLDEN/qwen3-moe --backend cpu --threads 2 --output-len 24 --format json
check 'o[0]["experts_read_per_layer"] == 3 and o[0]["busiest_over_mean"] >= 1'
check '[p["bytes"] for p in o[0]["operators"] if p["op"] == "expert_down"] == [2 * 3 * 48 * 40 * 2]'
check '[p["bytes"] for p in o[0]["operators"] if p["op"] == "expert_gate_up"] == [2 * 3 * 2 * 48 * 40 * 2]'
run 0 profile $GOLDEN/qwen3-moe --backend cpu --threads 2 --output-len 40 --batch-size 3
out_says "busiest worker over the mean"
out_says "experts read by a layer"
out_says "the largest losses"
out_says "critical path"
grep -E '^  for worker [01] ' "$T/out" | grep -qvE ' 0\.0 ' || die "no worker was waited for"
grep -qE '[0-9]+ records per iteration, [0-9]+ ns for each that reads the clock' "$T/out" || die "cost"

refused 2 "output-len" profile $TINY --output-len 1
refused 2 "one size at a time" profile $TINY --batch-size 1,2
refused 1 "--trace: /no/such/folder/x" profile $TINY --output-len 4 --trace /no/such/folder/x
refused 1 "--html: /no/such/folder/x" profile $TINY --output-len 4 --html /no/such/folder/x
exit 0
