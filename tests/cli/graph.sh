# graph.sh - `quern graph`: every stage in every form, one layer, differences, dumps of any compile.
. tests/cli/common.bash

for stage in kernel decompose memory_plan depend event_fuse normalize linearize place transport tasks \
    events program; do
    run 0 graph $TINY --stage $stage --threads 3
    run 0 graph $TINY --stage $stage --threads 3 --format dot
    out_says "digraph"
    [ "$(tr -cd '{' <"$T/out" | wc -c)" = "$(tr -cd '}' <"$T/out" | wc -c)" ] || die "$stage: braces"
    run 0 graph $TINY --stage $stage --threads 3 --format html
    out_says "</html>"
    grep -q '@@' "$T/out" && die "$stage: the page has a mark left"
    page_runs "$T/out"
    grep -qE 'https?://' "$T/out" && die "$stage: the page names a network address"
    run 0 graph $TINY --stage $stage --threads 3 --format json
    python3 - "$T/out" <<'PY' || die "$stage: JSON"
import json, sys
g = json.load(open(sys.argv[1]))
n = len(g["nodes"])
assert n > 0 and len({(x["kind"], x["id"]) for x in g["nodes"]}) == n
assert all(0 <= e[0] < n and 0 <= e[1] < n and e[4] >= 0 for e in g["edges"])
kinds = {x["kind"] for x in g["nodes"]}
touched = {i for e in g["edges"] for i in e[:2]}
assert len(touched) == n, "a node without an edge"
PY
done

# The same tasks before and after a pass; a task's edges follow from its numbers.
run 0 graph $TINY --stage tasks --threads 2 --format json
python3 - "$T/out" <<'PY' || die "tasks: JSON"
import json, sys
g = json.load(open(sys.argv[1]))
nodes = g["nodes"]
for i, x in enumerate(nodes):
    if x["kind"] != "task":
        continue
    into = [nodes[e[0]]["id"] for e in g["edges"] if e[1] == i]
    out = [nodes[e[1]]["id"] for e in g["edges"] if e[0] == i]
    assert into == ["event %d" % x["attrs"]["wait"]], x
    assert out == ["event %d" % x["attrs"]["trigger"]], x
weights = sum(x["attrs"]["weight_bytes"] for x in nodes if x["kind"] == "task")
assert weights > 10e6, weights
PY

# One layer: its own tasks, and neighbours marked as such.
run 0 graph $TINY --stage place --layer 2 --format json
python3 - "$T/out" <<'PY' || die "layer 2"
import json, sys
g = json.load(open(sys.argv[1]))
inside = [n for n in g["nodes"] if n["kind"] == "task" and not n["outside"]]
outside = [n for n in g["nodes"] if n["kind"] == "task" and n["outside"]]
assert inside and all(n["layer"] == 2 for n in inside)
assert outside and all(n["layer"] != 2 for n in outside)
PY

run 0 graph $TINY --stage place --diff
out_says "place, 1 row against linearize"
out_says "worker 0"
run 0 graph $TINY --stage memory_plan --diff --format json
python3 -c 'import json,sys; o=json.load(open(sys.argv[1])); assert o["changes"] and all("offset" in c["what"] for c in o["changes"] if c["change"]=="changed")' "$T/out" || die "diff JSON"
run 0 graph $TINY --stage kernel --rows 4
out_says "4 rows"

refused 1 "there is no stage before" graph $TINY --diff
refused 1 "no 'nope'" graph $TINY --stage nope
refused 1 "layer: want 0 to" graph $TINY --layer 77
refused 1 "no variant has 3" graph $TINY --rows 3
refused 1 "format text or json" graph $TINY --stage place --diff --format dot
refused 2 "format" graph $TINY --format xml

# A program file alone: what is in it is shown as from the model, the stages before are refused.
P=$T/tiny.qnp
run 0 compile $TINY -o "$P" --threads 3 -q
for stage in kernel transport tasks events program; do
    for form in text json html; do
        run 0 graph $TINY --stage $stage --threads 3 --rows 2 --format $form
        cp "$T/out" "$T/want"
        run 0 graph --program "$P" --stage $stage --rows 2 --format $form
        cmp -s "$T/out" "$T/want" || die "$stage, $form: the file's graph is not the model's"
    done
done
run 0 graph --program "$P" --stage program --layer 1
out_says "layer 1"
run 0 graph $TINY --program "$P" --stage program
refused 1 "place is not in a program file, which holds only the final stage" \
    graph --program "$P" --stage place
err_says "give --model instead of --program"
refused 1 "place is not in a program file" graph $TINY --program "$P" --stage place
refused 1 "diff: a program file holds only the final stage" graph --program "$P" --stage transport --diff
refused 1 "no variant has 3" graph --program "$P" --stage program --rows 3
refused 1 "compiled for another model" graph $GOLDEN/qwen3 --load-format dummy --program "$P"
refused 2 "which model?" graph --stage program
head -c 5000 "$P" >"$T/torn.qnp"
refused 1 "torn.qnp" graph --program "$T/torn.qnp" --stage program

# Dumps that the environment asks for.
QN_DUMP=kernel,place QN_DUMP_DIR=$T run 0 inspect $TINY
[ -s "$T/1-kernel.txt" ] && [ -s "$T/1-place.txt" ] && [ -s "$T/4-place.txt" ] || die "no dumps"
[ ! -e "$T/1-depend.txt" ] || die "a dump that nobody asked for"
# By itself into the current folder; never to stdout or stderr.
mkdir "$T/here"
model=$(realpath $TINY)
(cd "$T/here" && QN_DUMP=all "$Q" compile "$model" -o ../again.qnp --threads 3 -q) >"$T/out" 2>"$T/err" ||
    die "QN_DUMP=all"
[ ! -s "$T/out" ] && [ ! -s "$T/err" ] || die "a dump was printed"
run 0 compile "$model" -o "$T/plain.qnp" --threads 3 -q
cmp -s "$T/again.qnp" "$T/plain.qnp" || die "a dump changed the program"
grep -q "variant rows 1" "$T/here/program.txt" || die "no program.txt"
for rows in 1 2 128; do
    for stage in kernel decompose memory_plan depend event_fuse normalize linearize place transport; do
        [ -s "$T/here/$rows-$stage.txt" ] || die "no $rows-$stage.txt"
    done
done
QN_DUMP=kernel,plaec refused 1 "QN_DUMP: no stage 'plaec'; there are all, kernel, decompose" \
    inspect $TINY
QN_DUMP=kernel QN_DUMP_DIR=$T/nowhere refused 1 "QN_DUMP: $T/nowhere/1-kernel.txt: No such file" \
    inspect $TINY
[ ! -e /dev/full ] || { ln -s /dev/full "$T/here/full" && ln -sf full "$T/here/1-place.txt"; }
[ ! -e /dev/full ] || QN_DUMP=place QN_DUMP_DIR=$T/here refused 1 "1-place.txt: No space" inspect $TINY
exit 0
