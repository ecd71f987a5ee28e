# progress.sh - what stderr says while an engine opens: lines, JSON events, a bar, nothing.
. tests/cli/common.bash

go() { run 0 generate $TINY --prompt-ids 1,2 --max-tokens 1 "$@"; }
go --progress lines
err_says "weights: 10.8 MB of 10.8 MB done"
go --progress json --format json
check 'len(o) == 1'
python3 - "$T/err" <<'PY' || die "events"
import json, sys
events = [json.loads(l) for l in open(sys.argv[1]) if l.startswith("{")]
stages = [e["stage"] for e in events if e["finished"]]
assert stages == ["model", "compile", "weights", "memory"], stages
assert all(e["event"] == "progress" and e["seconds"] >= 0 for e in events)
assert all(e["done"] <= e["total"] for e in events)
w = [e for e in events if e["stage"] == "weights"][-1]
assert w["done"] == w["total"] > 10e6
PY
go --progress bar
grep -q $'\r' "$T/err" || die "no bar"
go --progress none
grep -q "weights:" "$T/err" && die "progress that nobody wanted"
go # not a terminal, and over at once
grep -qE "done|event" "$T/err" && die "stages that take no time are not worth a line"
go -q --progress lines
[ ! -s "$T/err" ] || die "--quiet is not quiet"
refused 2 "progress" generate $TINY --prompt-ids 1 --progress loud
exit 0
