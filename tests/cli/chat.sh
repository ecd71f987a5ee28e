# chat.sh - conversations from a pipe.
. tests/cli/common.bash

printf 'Hello!\n\nWho are you?\n/exit\nnot read\n' >"$T/in"
run 0 chat $TINY --temperature 0 --max-tokens 30 -q <"$T/in"
[ "$(wc -l <"$T/out")" -ge 2 ] || die "want two answers"
[ ! -s "$T/err" ] || die "chat -q wrote to stderr"
cp "$T/out" "$T/two"
printf 'Hello!\n' >"$T/in"
run 0 chat $TINY --temperature 0 --max-tokens 30 -q <"$T/in"
cmp <(head -c "$(wc -c <"$T/out")" "$T/two") "$T/out" || die "the first answer differs"
# The template that the model names, spelled out by hand, gives the same answer.
printf '<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n' >"$T/prompt"
run 0 generate $TINY --prompt-file "$T/prompt" --no-special-tokens --temperature 0 --max-tokens 30 -q
cmp <(cat "$T/out") <(head -c "$(wc -c <"$T/out")" "$T/two") || die "not the model's template"
printf 'Hello!\n/reset\nHello!\n' >"$T/in"
run 0 chat $TINY --temperature 0 --max-tokens 30 -q <"$T/in"
n=$(wc -c <"$T/out")
cmp <(head -c $((n / 2)) "$T/out") <(tail -c $((n / 2)) "$T/out") || die "/reset"
printf 'Hello!\n' >"$T/in"
run 0 chat $TINY --temperature 0 --max-tokens 30 --system 'You are a pirate.' --chat-template chatml -q <"$T/in"
run 1 chat $TINY --chat-template nonsense -q <"$T/in"
err_says "nonsense"
run 1 chat $GOLDEN/qwen3 -q <"$T/in"
err_says "tokenizer"
head -c 20000 /dev/zero | tr '\0' 'x' >"$T/in"
run 1 chat $TINY -q <"$T/in"
err_says "max_model_len"
run 0 chat $TINY -q </dev/null

# A pipe loses no question: the conversation starts over where it fills the context, and what cannot
# be asked is named.
for _ in 1 2 3 4 5 6; do echo "Tell me a story about a fox."; done >"$T/in"
run 0 chat $TINY --temperature 0 --max-model-len 300 <"$T/in"
[ "$(wc -l <"$T/out")" -ge 6 ] || die "want six answers"
err_says "it starts over with this question, as after /reset"
head -1 "$T/in" | "$Q" chat $TINY --temperature 0 --max-model-len 60 >"$T/out" 2>"$T/err"
err_says "the answer was cut: the context of 60 positions is full; /reset starts over"
printf 'Hello!\n/rest\n/etc/hosts is what?\n//reset\n\xff\nHello!' >"$T/in"
run 1 chat $TINY --temperature 0 --max-tokens 5 --stop "
" <"$T/in"
err_says "unknown command /rest; /help lists them"
err_says "not UTF-8"
[ "$(wc -l <"$T/out")" -eq 4 ] || die "want four answers"
err_says "cut after 5 tokens"
code=0
"$Q" chat $TINY -q <&- >"$T/out" 2>"$T/err" || code=$?
[ $code -eq 1 ] || die "stdin is closed: exit code $code"
err_says "stdin is closed"
code=0
printf 'Hello!\nHello!\n' | "$Q" chat $TINY -q >/dev/full 2>"$T/err" || code=$?
[ $code -eq 1 ] || die "a full disk went unnoticed"
[ "$(wc -l <"$T/err")" -eq 1 ] || die "want one line of error"
exit 0
