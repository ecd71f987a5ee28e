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
exit 0
