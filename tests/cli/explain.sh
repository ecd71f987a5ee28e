# explain.sh - `quern explain`: a task, an event, a tensor; and that the three agree.
. tests/cli/common.bash

run 0 explain task:5 --model $TINY --threads 2 --format json
check 'o[0]["what"].startswith("task 5 ") and o[0]["from"].startswith("decompose: task 1 of 2")'
check 'o[0]["weight_bytes"] > 0 and o[0]["read_bytes"] > 0 and o[0]["written_bytes"] > 0'
check 'all("RAW" in t or "WAR" in t for t in o[0]["which_is_triggered_by"])'
event=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["waits_for"].split()[1].strip(","))' "$T/out")
run 0 explain event:$event --model $TINY --threads 2 --format json
check 'any(t.startswith("task 5 ") for t in o[0]["on_which_wait"])'
check 'o[0]["n_triggers"] == len(o[0]["triggered_by"]) and o[0]["n_dependents"] == len(o[0]["on_which_wait"])'
run 0 explain tensor:0.qkv.q --model $TINY --threads 2 --format json
check 'o[0]["bytes"] == 4 * o[0]["shape"][0] * o[0]["shape"][1] and o[0]["workspace_offset"] % 64 == 0'
check 'o[0]["tasks_that_write"] and o[0]["tasks_that_read"]'
run 0 explain tensor:model.norm.weight --model $TINY
out_says "nobody waits for it"
run 0 explain tensor:0.linear.y#2 --model $TINY
out_says "op 5 linear L0"
# a task of a later variant is found under the program's number
run 0 graph $TINY --stage tasks --rows 2 --format json --threads 2
task=$(python3 -c 'import json,sys; print(min(int(n["id"].split()[1]) for n in json.load(open(sys.argv[1]))["nodes"] if n["kind"]=="task"))' "$T/out")
run 0 explain task:$task --model $TINY --threads 2 --format json
check 'o[0]["variant_rows"] == 2'
run 0 explain task:0 --model $TINY
out_says "the start of the iteration"

# from a program file alone, the same answers as from the model
run 0 compile $TINY -o "$T/tiny.qnp" --threads 2 -q
for what in task:0 task:5 task:$task event:$event event:0 tensor:0.qkv.q tensor:0.linear.y#2 \
    tensor:model.norm.weight; do
    run 0 explain $what --model $TINY --threads 2 --format json
    cp "$T/out" "$T/want"
    run 0 explain $what --program "$T/tiny.qnp" --format json
    cmp -s "$T/out" "$T/want" || die "$what: the file's answer is not the model's"
done
refused 1 "there is none" explain task:99999999 --program "$T/tiny.qnp"
refused 1 "not a quern program" explain task:5 --program README.md

refused 1 "there is none" explain task:99999999 --model $TINY
refused 1 "there is none" explain tensor:nope --model $TINY
refused 1 "want task:NUMBER" explain task:abc --model $TINY
refused 1 "want task:NUMBER" explain frog:1 --model $TINY
refused 2 "explain what?" explain --model $TINY
exit 0
