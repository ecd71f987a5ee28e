# outputs.sh - where results go: links, devices, modes, stdout; what has no effect is refused.
. tests/cli/common.bash

run 0 compile $TINY -q -o "$T/plain"
[ "$(stat -c %a "$T/plain")" = "$(printf %o $((0666 & ~$(umask))))" ] || die "a new file's mode"
install -m 600 /dev/null "$T/private"
run 0 compile $TINY -q -o "$T/private"
[ "$(stat -c %a "$T/private")" = 600 ] || die "the mode changed"
cmp "$T/plain" "$T/private" || die "other bytes"
echo old >"$T/target"
ln -s target "$T/link"
run 0 compile $TINY -q -o "$T/link"
[ -L "$T/link" ] || die "the link was replaced"
cmp "$T/plain" "$T/target" || die "the link was not followed"
ln "$T/target" "$T/second"
run 0 compile $TINY -q -o "$T/second"
[ "$(stat -c %h "$T/target")" -eq 2 ] || die "a file with two names lost one"
mkfifo "$T/fifo"
cat "$T/fifo" >"$T/read" &
run 0 compile $TINY -q -o "$T/fifo"
wait
[ -p "$T/fifo" ] || die "the FIFO was replaced"
cmp "$T/plain" "$T/read" || die "the FIFO's reader got other bytes"
ln -s /dev/null "$T/null"
run 0 compile $TINY -q -o "$T/null"
[ -c /dev/null ] && [ -L "$T/null" ] || die "a device was replaced"
run 0 compile $TINY -q -o -
cmp "$T/plain" "$T/out" || die "-o - gives other bytes"
[ ! -e - ] || die "a file named -"
{ echo before; "$Q" compile $TINY -q -o -; } >"$T/appended"
[ "$(head -c 6 "$T/appended")" = before ] || die "-o - cut what was there"
ls "$T" | grep -q tmp && die "a temporary file is left"
refused 1 "/no/such/dir: No such file" compile $TINY -q -o /no/such/dir
refused 1 "directory" compile $TINY -q -o "$T"
run 0 verify "$T/plain" -q
run 0 verify "$T/private" -q

# arguments and options that cannot take effect
refused 2 "'$T/none' has given it already" verify "$T/none" --program "$T/plain" -q
refused 2 "has given it already" generate $TINY --model $TINY -p x -q
refused 2 "--model" verify $TINY -q
for pair in "--compile-options qkv=split" "--max-num-batched-tokens 64" "--kv-cache-dtype float32"; do
    # shellcheck disable=SC2086
    refused 2 "${pair%% *}: has no effect beside --program" generate $TINY --program "$T/plain" -p x $pair -q
done
refused 2 "--threads: has no effect beside --backend cuda" generate $TINY -p x --backend cuda --threads 2 -q
refused 2 "--isa: has no effect" bench latency $TINY --backend cuda --isa avx2
refused 2 "--trace: stdout has the result" generate $TINY -p x --trace - -q
refused 2 "--html: stdout has the result" profile $TINY --html - -q
printf '\n{"ids":[99999]}\n' >"$T/in"
refused 1 "line 2: " detokenize $TINY --jsonl <"$T/in"
exit 0
