# op_search.sh - `quern op search` and `quern op show`: graphs found, their forms, what is refused.
. tests/cli/common.bash
P=tests/search/patterns

run 0 op search $P/rmsnorm_linear.op --max-graphs 3 --format json
check 'len(o[0]["graphs"]) == 3 and o[0]["complete"] and o[0]["states"] > 10 and o[0]["seconds"] >= 0'
check 'all(g["proved"] is True and g["tasks"] == 1 and g["cost"] > 0 for g in o[0]["graphs"])'
check '[g["cost"] for g in o[0]["graphs"]] == sorted(g["cost"] for g in o[0]["graphs"])'
check 'o[0]["graphs"][0]["text"].startswith("task rmsnorm_linear expr ")'
cp "$T/out" "$T/one"
run 0 op search $P/rmsnorm_linear.op --max-graphs 3 --threads 2 --format json
python3 - "$T/one" "$T/out" <<'PY' || die "two threads find something else"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
sys.exit(a["graphs"] != b["graphs"])
PY

run 0 op search $P/gqa_decode.op --tasks 2 --max-graphs 1
out_says "1 graphs, all proved"
out_says "task gqa_decode_2"
out_says "acc_online"
run 0 op search $P/lora.op --sizes r=16,h=1024
out_says "dim r whole size 16"
run 0 op search $P/attention_output.op --sizes n=4096,d=4096
out_says "0 graphs, all proved"
out_says "were refused; the first: task attention_output"

# What is found is shown again, from its text, in every form.
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["graphs"][0]["text"], end="")' "$T/one" >"$T/found.txt"
run 0 op show "$T/found.txt"
cmp -s "$T/out" "$T/found.txt" || die "a graph's text is not shown as it is"
(echo "# a comment"; cat "$T/found.txt") >"$T/commented.txt"
run 0 op show "$T/commented.txt"
cmp -s "$T/out" "$T/found.txt" || die "a comment before the graph"
run 0 op show $P/rmsnorm_linear.op
cmp -s "$T/out" "$T/found.txt" || die "op show of an operator is not its cheapest graph"
run 0 op show "$T/found.txt" --format dot
out_says "digraph"
[ "$(tr -cd '{' <"$T/out" | wc -c)" = "$(tr -cd '}' <"$T/out" | wc -c)" ] || die "dot: braces"
run 0 op show "$T/found.txt" --format html
out_says "</html>"
grep -qE 'https?://|src=|href=' "$T/out" && die "the page loads something"
python3 - "$T/out" <<'PY' || die "html: tags"
import html.parser, sys
class P(html.parser.HTMLParser):
    def __init__(self): super().__init__(); self.open = []
    def handle_starttag(self, tag, attrs):
        if tag not in ("meta",): self.open.append(tag)
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag): assert self.open.pop() == tag, tag
p = P(); p.feed(open(sys.argv[1]).read()); assert not p.open, p.open
PY

# Refused, with the reason.
sed 's/over h : loop reg f32 tree/over i : loop reg f32 tree/' "$T/found.txt" >"$T/broken.txt"
refused 1 "dims do not follow from its operands" op show "$T/broken.txt"
sed 's/dim t grid/dim t grill/' "$T/found.txt" >"$T/broken.txt"
refused 1 "line 2: 'grill' is no role of a dim" op show "$T/broken.txt"
printf 'op f(a[t] act, b[t] act, m[t] mask) -> y[t]\n  y = select(m, a, b)\n' >"$T/select.op"
refused 1 "line 2: the search does not know select" op search "$T/select.op"
refused 1 "nofile" op search "$T/nofile"
refused 1 "nofile" op show "$T/nofile"
refused 1 "sizes: want NAME=NUMBER" op search $P/lora.op --sizes r
refused 2 "--tasks: want 1 or 2" op search $P/lora.op --tasks 3
refused 2 "which operator" op search
refused 2 "which graph or operator" op show
